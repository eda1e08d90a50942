{{- /* A port anywhere; null closes it. */}}
{{- define "duesday.egressPort" -}}
{{- if not (kindIs "invalid" .) }}
- ports:
    - {protocol: TCP, port: {{ . | int }}}
{{- end }}
{{- end }}

{{- /* What every pod needs, the migration's and the proxy's too. */}}
{{- define "duesday.egress" -}}
{{- with .Values.networkPolicy }}
{{- if not (kindIs "invalid" .dnsPort) }}
- ports:
    - {protocol: UDP, port: {{ .dnsPort | int }}}
    - {protocol: TCP, port: {{ .dnsPort | int }}}
{{- end }}
{{- include "duesday.egressPort" .postgresPort }}
{{- end }}
{{- end }}

{{- define "duesday.egressExtra" -}}
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /*
The API server. The specification leaves open whether a connection to a Service
is judged by the Service's address and port or by those behind it, so that with
addresses both ports are open there. Without, the port of Services is not: it is
Stripe's.
*/}}
{{- define "duesday.egressAPIServer" -}}
{{- with .Values.networkPolicy }}
{{- if not .apiServerCIDRs }}
{{- include "duesday.egressPort" .apiServerPort }}
{{- else if not (and (kindIs "invalid" .httpsPort) (kindIs "invalid" .apiServerPort)) }}
- to:
    {{- range .apiServerCIDRs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range list .httpsPort .apiServerPort | uniq }}
    {{- if not (kindIs "invalid" .) }}
    - {protocol: TCP, port: {{ . | int }}}
    {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Selects the pods that charge. */}}
{{- define "duesday.chargingPods" -}}
matchLabels:
  {{- include "duesday.selector" (list . "") | nindent 2 }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [run, reconcile]}
{{- end }}
