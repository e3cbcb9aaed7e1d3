{{/* Prefix of every object's name. */}}
{{- define "tartlet.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "release %q: Services get names that begin so, and theirs begin with a letter and have no dots: set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Prefix of cluster-scoped names: two releases of one name in two namespaces must not meet. */}}
{{- define "tartlet.clusterName" -}}
{{- printf "tartlet:%s:%s" .Release.Namespace (include "tartlet.fullname" .) -}}
{{- end -}}

{{/* Labels of every object. Argument: dict root, component. */}}
{{- define "tartlet.labels" -}}
{{ include "tartlet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tartlet
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels that never change. Argument: dict root, component. */}}
{{- define "tartlet.selector" -}}
app.kubernetes.io/name: tartlet
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tartlet.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "tartlet.workerImage" -}}
{{- printf "%s:%s" .Values.workerImage.repository (.Values.workerImage.tag | default .Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{/* Addresses with the namespace: workers may run in another one, and certificates carry these names. */}}
{{- define "tartlet.controlAddress" -}}
{{- printf "%s-control.%s.svc:7443" (include "tartlet.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "tartlet.runtimeAddress" -}}
{{- printf "%s-runtime.%s.svc:7444" (include "tartlet.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Namespaces that the operator watches, as a JSON list: the release's own, unless others are given. */}}
{{- define "tartlet.namespaces" -}}
{{- .Values.operator.namespaces | default (list .Release.Namespace) | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Pools whose engines serve all namespaces, for control: those of the values, and the release's own unless kept. */}}
{{- define "tartlet.sharedPools" -}}
{{- $pools := .Values.control.sharedPools | default list -}}
{{- if .Values.control.shareEnginePools -}}
{{- range .Values.enginePools }}{{ $pools = append $pools (printf "%s/%s" $.Release.Namespace .name) }}{{ end -}}
{{- end -}}
{{- $pools | uniq | join "," -}}
{{- end -}}

{{/* One Tartlet a namespace, and one operator that watches it: two would fight over the same objects. */}}
{{- define "tartlet.checkAlone" -}}
{{- $root := . -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") "tartlet") (eq (get $labels "app.kubernetes.io/component") "operator") (ne (get $labels "app.kubernetes.io/instance") $root.Release.Name) -}}
{{- fail (printf "release %q already runs Tartlet in namespace %q: install into another namespace, or upgrade that release" (get $labels "app.kubernetes.io/instance") $root.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- range $watched := include "tartlet.namespaces" . | fromJsonArray -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "RoleBinding" $watched "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $operators := and (eq (get $labels "app.kubernetes.io/name") "tartlet") (eq (get $labels "app.kubernetes.io/component") "operator") -}}
{{- if and $operators (not (hasSuffix "-lease" .roleRef.name)) -}}{{/* -lease: it runs here, and watches elsewhere */}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- $home := (.subjects | default list | first | default dict).namespace -}}
{{- if or (ne $release $root.Release.Name) (ne $home $root.Release.Namespace) -}}
{{- fail (printf "release %q of namespace %q already watches namespace %q, and two operators would fight over its objects: leave %q out of operator.namespaces (none given: the release's own), or first upgrade %q without it" $release $home $watched $watched $release) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a CRD is this release's to bring: nobody has it yet, or this release does. Argument: dict root, name. */}}
{{- define "tartlet.ownsCrd" -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name | default dict -}}
{{- $notes := dig "metadata" "annotations" dict $there -}}
{{- $ours := and (eq (get $notes "meta.helm.sh/release-name") .root.Release.Name) (eq (get $notes "meta.helm.sh/release-namespace") .root.Release.Namespace) -}}
{{- if or (not $there) $ours }}true{{ end -}}
{{- end -}}

{{- define "tartlet.ownsCrds" -}}
{{- if .Values.crds.enabled }}{{ include "tartlet.ownsCrd" (dict "root" . "name" "enginepools.tartlet.dev") }}{{ end -}}
{{- end -}}
