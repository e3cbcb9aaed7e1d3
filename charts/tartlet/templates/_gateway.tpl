{{/* How clients speak to the gateway's port. */}}
{{- define "tartlet.gatewayScheme" -}}
{{- ternary "https" "http" (ne .Values.gateway.https.secretName "") -}}
{{- end -}}

{{- define "tartlet.gatewayUrl" -}}
{{- printf "%s://%s-gateway.%s.svc:%v" (include "tartlet.gatewayScheme" .) (include "tartlet.fullname" .) .Release.Namespace .Values.gateway.service.port -}}
{{- end -}}
