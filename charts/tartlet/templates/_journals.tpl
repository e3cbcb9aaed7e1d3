{{/*
Where runtimes keep journals: the runtime's settings, as JSON; {} means files in its scratch space. A Redis on another
node may be away for as long as its pod takes to move there, with its volume: programs wait that long.
*/}}
{{- define "tartlet.journalSettings" -}}
{{- $journals := .Values.journals -}}
{{- $settings := dict -}}
{{- if eq $journals.store "redis" -}}
{{- $_ := set $settings "journal_url" (printf "redis://%s-journals.%s.svc.%s:6379" (include "tartlet.fullname" .) .Release.Namespace .Values.clusterDomain) -}}
{{- else if eq $journals.store "external" -}}
{{- if not $journals.external.url }}{{ fail "journals.external.url is empty: give redis://HOST:PORT or rediss://HOST:PORT, or choose another journals.store" }}{{ end -}}
{{- $_ := set $settings "journal_url" $journals.external.url -}}
{{- if $journals.external.secretName -}}
{{- with $journals.external.passwordKey }}{{ $_ := set $settings "journal_password_file" "/etc/tartlet/journals/password" }}{{ end -}}
{{- with $journals.external.authorityKey }}{{ $_ := set $settings "journal_authority" "/etc/tartlet/journals/ca.crt" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and $settings (not (hasKey .Values.runtime.settings "journal_grace_s")) }}{{ $_ := set $settings "journal_grace_s" 120 }}{{ end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* Whether a Secret of the user's belongs to the journals' Redis: "true" or "". */}}
{{- define "tartlet.journalSecret" -}}
{{- if and (eq .Values.journals.store "external") .Values.journals.external.secretName -}}true{{- end -}}
{{- end -}}
