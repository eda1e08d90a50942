{{- /* (dict "root" $ "command" …): what a pod of the command needs to know to tell its metrics. */}}
{{- define "duesday.metricsEnv" -}}
{{- $ := .root }}
{{- with $.Values.metrics }}
- name: DUESDAY_METRICS_ADDR
  value: {{ printf ":%d" (int .port) | quote }}
- name: DUESDAY_PUSHGATEWAY_JOB
  value: {{ include "duesday.fullname" $ }}
{{- with .pushgatewayUrl }}
- name: DUESDAY_PUSHGATEWAY_URL
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if eq .command "reconcile" }}
- name: DUESDAY_PERIOD_OFFSET
  value: {{ $.Values.billing.periodOffset | int | quote }}
- name: DUESDAY_TIME_ZONE
  value: {{ $.Values.timeZone | quote }}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}
{{- end }}

{{- /* (dict "root" $ "labels" …): labels of an object that somebody else finds by labels of his. */}}
{{- define "duesday.foundBy" -}}
{{- merge (include "duesday.labels" (list .root "") | fromYaml) (default dict .labels) | toYaml }}
{{- end }}

{{- /* The port of the Pushgateway's URL. */}}
{{- define "duesday.pushgatewayPort" -}}
{{- $url := urlParse .Values.metrics.pushgatewayUrl }}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end }}
