{{/* What restricted pod security asks of a pod. */}}
{{- define "tartlet.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What it asks of a container, and a read-only root. */}}
{{- define "tartlet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The same for our own image: of its user the kubelet leaves out the group, and it would be root's. */}}
{{- define "tartlet.ownContainerSecurity" -}}
{{ include "tartlet.containerSecurity" . }}
runAsGroup: 10001
{{- end -}}

{{/* How a role's pods are placed. Argument: dict root, component, values. */}}
{{- define "tartlet.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
topologySpreadConstraints:
{{- range .values.topologySpreadConstraints }}
  - labelSelector:
      matchLabels: {{- include "tartlet.selector" $ | nindent 8 }}
    {{- toYaml . | nindent 4 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "tartlet.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Metadata of a role's pods. Argument: dict root, component, values, identity (whose certificate they carry). */}}
{{- define "tartlet.podMetadata" -}}
labels: {{- merge (include "tartlet.labels" . | fromYaml) (.values.podLabels | default dict) | toYaml | nindent 2 }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .component }}
  {{- if eq .root.Values.certificates.provider "chart" }}
  checksum/certificate: {{ get (get (include "tartlet.certificates" .root | fromJson) .component) "checksum" }}
  {{- end }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
A role's environment. Argument: dict root, component, values, settings (those that the chart itself decides).
Settings go by their own names: `step_s` of role `x` is TARTLET_X_STEP_S.
*/}}
{{- define "tartlet.env" -}}
{{- $prefix := printf "TARTLET_%s_" (upper .component) -}}
{{- $settings := dict
  "health_address" "0.0.0.0:8080"
  "log_format" .root.Values.log.format
  "log_level" .root.Values.log.level
  "tls_certificate" "/etc/tartlet/tls/tls.crt"
  "tls_key" "/etc/tartlet/tls/tls.key"
  "tls_authority" "/etc/tartlet/tls/ca.crt"
  "tls_domain" (include "tartlet.tlsDomain" .root) -}}
{{- range $name, $value := mergeOverwrite $settings (.values.settings | default dict) .settings }}
- name: {{ $prefix }}{{ upper $name }}
  value: {{ include "tartlet.scalar" $value | quote }}
{{- end }}
- {name: TARTLET_RUN_DIR, value: /tmp/run}
- {name: TARTLET_CACHE_DIR, value: /tmp/cache}
- {name: HOME, value: /tmp}
{{- with .root.Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Numbers come from YAML as floats: 4194304 must not turn into 4.194304e+06. */}}
{{- define "tartlet.scalar" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Probes: liveness is a loop that runs, readiness is the role's own word. */}}
{{- define "tartlet.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{- define "tartlet.mounts" -}}
- {name: scratch, mountPath: /tmp}
- {name: tls, mountPath: /etc/tartlet/tls, readOnly: true}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tartlet.volumes" -}}
- name: scratch
  emptyDir: {sizeLimit: {{ .values.scratchSize | quote }}}
- name: tls
  secret:
    secretName: {{ include "tartlet.fullname" .root }}-{{ .component }}-tls
    defaultMode: 0444
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
