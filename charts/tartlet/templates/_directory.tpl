{{/* Where control keeps the page directory: control's settings, as JSON; {} means in its memory. */}}
{{- define "tartlet.directorySettings" -}}
{{- $directory := .Values.control.directory -}}
{{- $settings := dict -}}
{{- if eq $directory.store "redis" -}}
{{- $_ := set $settings "directory_url" (printf "redis://%s-redis.%s.svc.%s:6379" (include "tartlet.fullname" .) .Release.Namespace .Values.clusterDomain) -}}
{{- else if eq $directory.store "external" -}}
{{- if not $directory.external.url }}{{ fail "control.directory.external.url is empty: give redis://HOST:PORT or rediss://HOST:PORT, or choose another control.directory.store" }}{{ end -}}
{{- $_ := set $settings "directory_url" $directory.external.url -}}
{{- if $directory.external.secretName -}}
{{- with $directory.external.passwordKey }}{{ $_ := set $settings "directory_password_file" "/etc/tartlet/directory/password" }}{{ end -}}
{{- with $directory.external.authorityKey }}{{ $_ := set $settings "directory_ca_file" "/etc/tartlet/directory/ca.crt" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $settings }}{{ $_ := set $settings "directory_release" (include "tartlet.redisRelease" .) }}{{ end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* Names this release in a Redis that others may use too. */}}
{{- define "tartlet.redisRelease" -}}
{{- printf "%s/%s" .Release.Namespace (include "tartlet.fullname" .) -}}
{{- end -}}

{{/* Whether the chart runs a Redis for control: "true" or "". */}}
{{- define "tartlet.controlRedis" -}}
{{- $lease := and (gt (int .Values.control.replicas) 1) (eq .Values.control.lease.store "redis") -}}
{{- if or $lease (eq .Values.control.directory.store "redis") -}}true{{- end -}}
{{- end -}}

{{/* Whether control dials a Redis, of the chart's or the user's: "true" or "". */}}
{{- define "tartlet.controlDialsRedis" -}}
{{- if or (gt (int .Values.control.replicas) 1) (ne .Values.control.directory.store "memory") -}}true{{- end -}}
{{- end -}}

{{/* By which lease one of several controls leads: control's settings, as JSON; {} means that there is one control. */}}
{{- define "tartlet.leaseSettings" -}}
{{- $lease := .Values.control.lease -}}
{{- $settings := dict -}}
{{- if gt (int .Values.control.replicas) 1 -}}
{{- $_ := set $settings "directory_release" (include "tartlet.redisRelease" .) -}}
{{- if eq $lease.store "redis" -}}
{{- $_ := set $settings "lease_url" (printf "redis://%s-redis.%s.svc.%s:6379" (include "tartlet.fullname" .) .Release.Namespace .Values.clusterDomain) -}}
{{- else -}}
{{- if not $lease.external.url }}{{ fail "control.lease.external.url is empty: give redis://HOST:PORT or rediss://HOST:PORT, or control.lease.store=redis" }}{{ end -}}
{{- $_ := set $settings "lease_url" $lease.external.url -}}
{{- if $lease.external.secretName -}}
{{- with $lease.external.passwordKey }}{{ $_ := set $settings "lease_password_file" "/etc/tartlet/lease/password" }}{{ end -}}
{{- with $lease.external.authorityKey }}{{ $_ := set $settings "lease_ca_file" "/etc/tartlet/lease/ca.crt" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* Whether a Secret of the user's belongs to the lease's Redis: "true" or "". */}}
{{- define "tartlet.leaseSecret" -}}
{{- if and (gt (int .Values.control.replicas) 1) (eq .Values.control.lease.store "external") .Values.control.lease.external.secretName -}}true{{- end -}}
{{- end -}}

{{/*
How control's pods are replaced. Several with a lease: one by one, since each waits for the lease. A single control
has none, so two must never run at once, nor one without a lease beside others.
*/}}
{{- define "tartlet.controlStrategy" -}}
{{- $there := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-control" (include "tartlet.fullname" .)) | default dict -}}
{{- $alone := eq 1 (int (dig "spec" "replicas" 2 $there)) -}}
{{- if or (eq 1 (int .Values.control.replicas)) $alone -}}
type: Recreate
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{/* Whether a Secret of the user's belongs to the directory's Redis: "true" or "". */}}
{{- define "tartlet.directorySecret" -}}
{{- if and (eq .Values.control.directory.store "external") .Values.control.directory.external.secretName -}}true{{- end -}}
{{- end -}}
