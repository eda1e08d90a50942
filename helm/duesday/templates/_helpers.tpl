{{- define "duesday.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* A CronJob's name may have 52 characters, 11 fewer than others: its Jobs' names are longer. */}}
{{- define "duesday.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* (list $ "suffix"): the full name with a suffix, in 52 characters. */}}
{{- define "duesday.suffixed" -}}
{{- $suffix := index . 1 }}
{{- $room := sub 51 (len $suffix) | int }}
{{- printf "%s-%s" (include "duesday.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix }}
{{- end }}

{{- define "duesday.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "duesday.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the service account that exists, or let serviceAccount.create make one" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* (list $ "component") selects the component's pods; with "", all of the release's. */}}
{{- define "duesday.selector" -}}
app.kubernetes.io/name: {{ include "duesday.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | trunc 63 | trimSuffix "-" }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "duesday.labels" -}}
{{- $ := index . 0 }}
{{- $own := include "duesday.selector" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/managed-by" $.Release.Service }}
{{- $_ := set $own "app.kubernetes.io/version" ($.Chart.AppVersion | trunc 63) }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- merge $own (default dict $.Values.labels) | toYaml }}
{{- end }}

{{- define "duesday.podLabels" -}}
{{- merge (include "duesday.labels" . | fromYaml) (default dict (index . 0).Values.podLabels) | toYaml }}
{{- end }}

{{- /* (dict "root" $ "name" … "component" … "annotations" …): an object's name, labels and annotations. */}}
{{- define "duesday.meta" -}}
name: {{ .name }}
{{ include "duesday.templateMeta" . }}
{{- end }}

{{- /* The same for an object that gets its name elsewhere. */}}
{{- define "duesday.templateMeta" -}}
labels:
  {{- include "duesday.labels" (list .root (default "" .component)) | nindent 2 }}
{{- with merge (dict) (default dict .annotations) (default dict .root.Values.annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "duesday.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded{{ if ne (. | int) 0 }},hook-failed{{ end }}
{{- end }}

{{- define "duesday.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "duesday.databaseSecret" -}}
{{- if .Values.database.url }}{{ include "duesday.suffixed" (list . "database") }}{{ else }}{{ required "database.existingSecret: name the secret with the database's URL (or give database.url, for trying out)" .Values.database.existingSecret }}{{ end }}
{{- end }}

{{- define "duesday.stripeSecret" -}}
{{- if .Values.stripe.apiKey }}{{ include "duesday.suffixed" (list . "stripe") }}{{ else }}{{ required "stripe.existingSecret: name the secret with Stripe's API key (or give stripe.apiKey, for trying out)" .Values.stripe.existingSecret }}{{ end }}
{{- end }}

{{- define "duesday.adminSecret" -}}
{{- with .Values.proxy.adminToken }}
{{- if .token }}{{ include "duesday.proxyName" $ }}{{ else }}{{ required "proxy.adminToken.existingSecret: name the secret with the proxy's admin token (or give proxy.adminToken.token, for trying out)" .existingSecret }}{{ end }}
{{- end }}
{{- end }}

{{- define "duesday.proxyName" -}}
{{- $name := include "duesday.suffixed" (list . "proxy") }}
{{- if not (regexMatch "^[a-z]" $name) }}
{{- fail (printf "fullnameOverride: the name of the proxy's Service must begin with a letter, got %s" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- /* The shards' Leases, as a JSON array: each shard elects its leader by one of its own, named as --lease-name says. */}}
{{- define "duesday.shardLeases" -}}
{{- $names := list }}
{{- if gt (int .Values.shards) 1 }}
{{- range $i := until (int .Values.shards) }}
{{- $names = append $names (printf "%s-shard-%d" (include "duesday.fullname" $) $i) }}
{{- end }}
{{- end }}
{{- $names | toJson }}
{{- end }}
