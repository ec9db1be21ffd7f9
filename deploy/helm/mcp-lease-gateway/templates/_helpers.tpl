{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* 50, so that "-internal" has room in a name of 63. */}}
{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gateway.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "gateway.secret" -}}
{{- default (include "gateway.fullname" .) .Values.existingSecret -}}
{{- end -}}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gateway.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "gateway.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "gateway.scheme" -}}
{{- ternary "HTTPS" "HTTP" (ne .Values.tlsSecret "") -}}
{{- end -}}

{{/* gateway.yaml: the values, and where the chart mounts things. */}}
{{- define "gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $documents := default dict $config.documents -}}
{{- $_ := set $documents "dir" "documents" -}}
{{- $_ := set $documents "secrets" "secrets" -}}
{{- $_ := set $config "documents" $documents -}}
{{- if .Values.tlsSecret -}}
{{- $_ := set $config "tls" (dict "cert" "tls/tls.crt" "key" "tls/tls.key") -}}
{{- end -}}
{{- if eq (include "gateway.embedded" .) "true" -}}
{{- $store := default dict $config.store -}}
{{- $_ := set $store "path" "/var/lib/mcp-lease-gateway/leases.db" -}}
{{- $_ := unset $store "uri" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "gateway.embedded" -}}
{{- eq (dig "store" "kind" "" .Values.config) "embedded" -}}
{{- end -}}

{{/* The key of a document in the ConfigMap, where a slash may not stand. */}}
{{- define "gateway.documentKey" -}}
{{- printf "documents.%s" (replace "/" ".." .) -}}
{{- end -}}

{{/* What the values can say and the gateway cannot be. */}}
{{- define "gateway.validate" -}}
{{- if eq (include "gateway.embedded" .) "true" -}}
{{- if or .Values.autoscaling.enabled (ne (int .Values.replicaCount) 1) -}}
{{- fail "config.store.kind embedded is for one pod: set replicaCount to 1 and autoscaling.enabled to false, or config.store.kind to mongodb" -}}
{{- end -}}
{{- if not .Values.persistence.enabled -}}
{{- fail "config.store.kind embedded needs a volume that outlives the pod: set persistence.enabled to true" -}}
{{- end -}}
{{- else if .Values.persistence.enabled -}}
{{- fail "persistence is for config.store.kind embedded; with mongodb the pods keep nothing" -}}
{{- end -}}
{{- end -}}
