{{/*
Names in each identity's certificate, as JSON: identity -> names. The first label of the first name is the identity that
servers go by; the others are what clients dial. `localhost` is the runtime's at the end of a port-forward. The client
acts for the tenant that is this namespace, so that it sees the programs of the namespace's runs, and its inferlets.
*/}}
{{- define "tartlet.certificateNames" -}}
{{- $name := include "tartlet.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- $names := dict -}}
{{- range $role := list "control" "runtime" "worker" "operator" "client" -}}
{{- $_ := set $names $role (list $role) -}}
{{- end -}}
{{- range $role := list "control" "runtime" -}}
{{- $service := printf "%s-%s" $name $role -}}
{{- $_ := set $names $role (concat (get $names $role) (list $service (printf "%s.%s" $service $ns) (printf "%s.%s.svc" $service $ns) (printf "%s.%s.svc.%s" $service $ns $.Values.clusterDomain))) -}}
{{- end -}}
{{- $_ := set $names "runtime" (concat (get $names "runtime") (list "localhost") (.Values.certificates.runtimeNames | default list)) -}}
{{- $_ := set $names "client" (list "client" (printf "tenant.%s" $ns)) -}}
{{- toJson $names -}}
{{- end -}}

{{/*
The CA and a certificate for each identity, as JSON: name -> {crt, key, ca, names, renewAfter, checksum} (PEM).
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
{{- $_ := set $out "ca" (dict "crt" $ca.Cert "key" $ca.Key "ca" $bundle "names" "" "renewAfter" (toString $renewAfter) "checksum" (sha256sum $ca.Cert)) -}}
{{- range $role, $names := include "tartlet.certificateNames" . | fromJson -}}
{{- $joined := join "," $names -}}
{{- $have := lookup "v1" "Secret" $.Release.Namespace (printf "%s-%s-tls" $name $role) | default dict -}}
{{- $due := dig "metadata" "annotations" "tartlet.dev/renew-after" "0" $have | int64 -}}
{{- $same := eq $joined (dig "metadata" "annotations" "tartlet.dev/names" "" $have) -}}
{{- $crt := "" -}}
{{- $key := "" -}}
{{- if and $have.data $same (lt $now $due) (not $newAuthority) -}}
{{- $crt = get $have.data "tls.crt" | b64dec -}}
{{- $key = get $have.data "tls.key" | b64dec -}}
{{- else -}}
{{- $made := genSignedCertWithKey (first $names) nil $names (int $days) $ca (genPrivateKey "ecdsa") -}}
{{- $crt = $made.Cert -}}
{{- $key = $made.Key -}}
{{- $due = add $now (div (mul $days 86400 2) 3) -}}
{{- end -}}
{{- $_ := set $out $role (dict "crt" $crt "key" $key "ca" $bundle "names" $joined "renewAfter" (toString $due) "checksum" (sha256sum (print $crt $bundle))) -}}
{{- end -}}
{{- $_ := set . "tartletCertificates" (toJson $out) -}}
{{- end -}}
{{- get . "tartletCertificates" -}}
{{- end -}}
