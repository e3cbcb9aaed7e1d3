{{/* The domain of this release's identities. No Service has a name in it, and no other release may have the domain. */}}
{{- define "tartlet.tlsDomain" -}}
{{- .Values.certificates.domain | default (printf "%s.%s.tartlet.internal" (include "tartlet.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{/*
The release's certificates, as JSON: key -> {role, namespace, names}. The first name is the identity, by which both ends
of a connection go; the names of Services and `localhost` are for clients that aren't Tartlet's. Workers have a
certificate in each namespace that is watched, which names that namespace as their tenant. The client acts for the
tenant that is this namespace, so that it sees the programs of the namespace's runs, and its inferlets.
*/}}
{{- define "tartlet.certificateNames" -}}
{{- $name := include "tartlet.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- $domain := include "tartlet.tlsDomain" . -}}
{{- $out := dict -}}
{{- range $role := concat (list "control" "runtime" "operator" "client") (ternary (list "gateway") list $.Values.gateway.enabled) -}}
{{- $names := list (printf "%s.%s" $role $domain) -}}
{{- if has $role (list "control" "runtime") -}}
{{- $service := printf "%s-%s" $name $role -}}
{{- $names = concat $names (list $service (printf "%s.%s" $service $ns) (printf "%s.%s.svc" $service $ns) (printf "%s.%s.svc.%s" $service $ns $.Values.clusterDomain)) -}}
{{- end -}}
{{- if eq $role "runtime" -}}
{{- $names = concat $names (list "localhost") ($.Values.certificates.runtimeNames | default list) -}}
{{- else if eq $role "client" -}}
{{- $names = append $names (printf "tenant.%s.%s" $ns $domain) -}}
{{- end -}}
{{- $_ := set $out $role (dict "role" $role "namespace" $ns "names" $names) -}}
{{- end -}}
{{- range $tenant := append (include "tartlet.namespaces" . | fromJsonArray) $ns | uniq -}}
{{- $names := list (printf "worker.%s" $domain) (printf "tenant.%s.%s" $tenant $domain) -}}
{{- $_ := set $out (printf "worker.%s" $tenant) (dict "role" "worker" "namespace" $tenant "names" $names) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/*
The CA and all certificates, as JSON: key -> {role, namespace, crt, key, ca, names, renewAfter, checksum} (PEM).
Made once for the whole rendering, since each call of genSignedCert gives another one. What is in the cluster is kept,
until two thirds of its time are over or its names change; a new CA brings the old one along for a while.
*/}}
{{- define "tartlet.certificates" -}}
{{- if not (hasKey . "tartletCertificates") -}}
{{- $name := include "tartlet.fullname" . -}}
{{- $now := now | unixEpoch | int64 -}}
{{- $caDays := int64 .Values.certificates.authorityDays -}}
{{- $days := int64 .Values.certificates.days -}}
{{- $out := dict -}}
{{- $old := lookup "v1" "Secret" .Release.Namespace (printf "%s-ca" $name) | default dict -}}
{{- $ca := dict -}}
{{- $bundle := "" -}}
{{- $newAuthority := true -}}
{{- $renewAfter := add $now (div (mul $caDays 86400 2) 3) -}}
{{- if $old.data -}}
{{- $due := dig "metadata" "annotations" "tartlet.dev/renew-after" "0" $old | int64 -}}
{{- $newAuthority = ge $now $due -}}
{{- if not $newAuthority -}}
{{- $ca = buildCustomCert (get $old.data "tls.crt") (get $old.data "tls.key") -}}
{{- $bundle = get $old.data "ca.crt" | b64dec -}}
{{- $renewAfter = $due -}}
{{- end -}}
{{- end -}}
{{- if $newAuthority -}}
{{- $ca = genCAWithKey (printf "%s.%s tartlet" $name .Release.Namespace) (int $caDays) (genPrivateKey "ecdsa") -}}
{{- $bundle = $ca.Cert -}}
{{- if $old.data -}}
{{- $bundle = printf "%s%s" $ca.Cert (get $old.data "tls.crt" | b64dec) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $out "ca" (dict "role" "ca" "namespace" .Release.Namespace "crt" $ca.Cert "key" $ca.Key "ca" $bundle "names" "" "renewAfter" (toString $renewAfter) "checksum" (sha256sum $ca.Cert)) -}}
{{- range $each, $wanted := include "tartlet.certificateNames" . | fromJson -}}
{{- $joined := join "," $wanted.names -}}
{{- $have := lookup "v1" "Secret" $wanted.namespace (printf "%s-%s-tls" $name $wanted.role) | default dict -}}
{{- $due := dig "metadata" "annotations" "tartlet.dev/renew-after" "0" $have | int64 -}}
{{- $same := eq $joined (dig "metadata" "annotations" "tartlet.dev/names" "" $have) -}}
{{- $crt := "" -}}
{{- $key := "" -}}
{{- if and $have.data $same (lt $now $due) (not $newAuthority) -}}
{{- $crt = get $have.data "tls.crt" | b64dec -}}
{{- $key = get $have.data "tls.key" | b64dec -}}
{{- else -}}
{{- $made := genSignedCertWithKey $wanted.role nil $wanted.names (int $days) $ca (genPrivateKey "ecdsa") -}}
{{- $crt = $made.Cert -}}
{{- $key = $made.Key -}}
{{- $due = add $now (div (mul $days 86400 2) 3) -}}
{{- end -}}
{{- $_ := set $out $each (dict "role" $wanted.role "namespace" $wanted.namespace "crt" $crt "key" $key "ca" $bundle "names" $joined "renewAfter" (toString $due) "checksum" (sha256sum (print $crt $bundle))) -}}
{{- end -}}
{{- $_ := set . "tartletCertificates" (toJson $out) -}}
{{- end -}}
{{- get . "tartletCertificates" -}}
{{- end -}}
