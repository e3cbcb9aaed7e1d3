{{/* HTTP requests of programs: the runtime's settings, as JSON. */}}
{{- define "tartlet.httpSettings" -}}
{{- $http := .Values.runtime.http -}}
{{- $settings := dict -}}
{{- with $http.hosts }}{{ $_ := set $settings "http_hosts" (join "," .) }}{{ end -}}
{{- with $http.privateHosts }}{{ $_ := set $settings "http_private_hosts" (join "," .) }}{{ end -}}
{{- with $http.secrets }}{{ $_ := set $settings "http_secrets" (join "," .) }}{{ end -}}
{{- if $http.secretName }}{{ $_ := set $settings "http_secrets_dir" "/etc/tartlet/secrets" }}{{ end -}}
{{- if and $http.secrets (not $http.secretName) }}{{ fail "runtime.http.secrets binds secrets, and runtime.http.secretName names no Secret that holds them: set it" }}{{ end -}}
{{- $owners := dict -}}
{{- range $http.secrets -}}
{{- $named := first (splitList "=" .) -}}
{{- $owner := ternary (first (splitList "/" $named)) "every namespace" (contains "/" $named) -}}
{{- $key := last (splitList "/" $named) -}}
{{- if ne $owner (get $owners $key | default $owner) }}{{ fail (printf "runtime.http.secrets binds the key %s for %s and for %s, who would share it: give each a key of its own" $key (get $owners $key) $owner) }}{{ end -}}
{{- $_ := set $owners $key $owner -}}
{{- end -}}
{{- with $http.proxy }}{{ $_ := set $settings "http_proxy" . }}{{ end -}}
{{- if $http.authority.secretName }}{{ $_ := set $settings "http_authority" (printf "/etc/tartlet/http-authority/%s" $http.authority.key) }}{{ end -}}
{{- if and $http.proxyNetworks (not $http.proxy) }}{{ fail "runtime.http.proxyNetworks says where a proxy is, and runtime.http.proxy names none: set it" }}{{ end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* The rules by which runtimes reach the hosts: egress of a NetworkPolicy. Names can't be in it, so ports and networks are. */}}
{{- define "tartlet.httpEgress" -}}
{{- $http := .Values.runtime.http -}}
{{- if and $http.hosts $http.proxyNetworks }}
- to:
    {{- range $http.proxyNetworks }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    - {protocol: TCP, port: {{ last (splitList ":" $http.proxy) }}}
{{- else if $http.hosts }}
- to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except: [10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
    - ipBlock: {cidr: "2000::/3"}
    {{- range $http.privateHosts }}
    {{- if contains "/" . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
    {{- end }}
  ports:
    {{- range $http.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}
