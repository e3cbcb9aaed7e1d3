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
{{- if $settings }}{{ $_ := set $settings "directory_release" (printf "%s/%s" .Release.Namespace (include "tartlet.fullname" .)) }}{{ end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* Whether a Secret of the user's belongs to the directory's Redis: "true" or "". */}}
{{- define "tartlet.directorySecret" -}}
{{- if and (eq .Values.control.directory.store "external") .Values.control.directory.external.secretName -}}true{{- end -}}
{{- end -}}
