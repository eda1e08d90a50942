{{- /* How a Job of ours treats its pods' ends; the caller gives restartPolicy Never. */}}
{{- define "duesday.failurePolicy" -}}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes:
        containerName: duesday
        operator: In
        values: [2, 3]
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
{{- end }}

{{- define "duesday.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "duesday.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Where a pod of ours may run. */}}
{{- define "duesday.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "duesday.databaseEnv" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "duesday.databaseSecret" . | quote }}
      key: {{ if .Values.database.url }}url{{ else }}{{ .Values.database.key | quote }}{{ end }}
{{- end }}

{{- /* Flags as environment variables, so that a rerun can override one. */}}
{{- define "duesday.env" -}}
{{- $ := index . 0 }}
{{- $lease := index . 1 }}
{{- with $.Values.billing }}
- name: DUESDAY_CUSTOMERS
  value: {{ .customers | quote }}
- name: DUESDAY_PERIOD_OFFSET
  value: {{ .periodOffset | int | quote }}
- name: DUESDAY_TIME_ZONE
  value: {{ $.Values.timeZone | quote }}
- name: DUESDAY_KEY_NAMESPACE
  value: {{ .keyNamespace | quote }}
- name: DUESDAY_STRIPE_METHOD
  value: {{ .method | quote }}
- name: DUESDAY_DESCRIPTION
  value: {{ .description | quote }}
- name: DUESDAY_RATE
  value: {{ .rate | toString | quote }}
- name: DUESDAY_WORKERS
  value: {{ .workers | int | quote }}
- name: DUESDAY_SPEND_CAP_FACTOR
  value: {{ .spendCapFactor | toString | quote }}
{{- end }}
- name: DUESDAY_LEASE_NAME
  value: {{ $lease }}
{{ include "duesday.databaseEnv" $ }}
- name: STRIPE_API_KEY_FILE
  value: /var/run/secrets/duesday/stripe/api-key
{{- with $.Values.stripe.apiBase }}
- name: STRIPE_API_BASE
  value: {{ . | quote }}
{{- end }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: JOB_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['batch.kubernetes.io/job-name']
{{- with $.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* (dict "root" $ "component" … "args" … "lease" …): a Job's pod that works with Stripe. */}}
{{- define "duesday.jobPod" -}}
{{- $ := .root }}
metadata:
  labels:
    {{- include "duesday.podLabels" (list $ .component) | nindent 4 }}
  {{- $checksums := dict }}
  {{- if or $.Values.database.url $.Values.stripe.apiKey }}
  {{- $_ := set $checksums "checksum/secrets" (include (print $.Template.BasePath "/secrets.yaml") $ | sha256sum) }}
  {{- end }}
  {{- with merge $checksums (default dict $.Values.podAnnotations) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: {{ $.Values.terminationGracePeriodSeconds | int }}
  serviceAccountName: {{ include "duesday.serviceAccountName" $ }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- with include "duesday.placement" $ }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "duesday.podSecurity" $ | nindent 4 }}
  {{- if kindIs "invalid" $.Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "duesday.selector" (list $ .component) | nindent 10 }}
  {{- else if $.Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $.Values.topologySpreadConstraints | nindent 4 }}
  {{- end }}
  containers:
    - name: duesday
      image: {{ include "duesday.image" $ | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args:
        {{- toYaml .args | nindent 8 }}
      env:
        {{- include "duesday.env" (list $ .lease) | trim | nindent 8 }}
      {{- with $.Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "duesday.containerSecurity" $ | nindent 8 }}
      volumeMounts:
        - name: stripe
          mountPath: /var/run/secrets/duesday/stripe
          readOnly: true
        {{- with $.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: stripe
      secret:
        secretName: {{ include "duesday.stripeSecret" $ | quote }}
        items:
          - key: {{ if $.Values.stripe.apiKey }}api-key{{ else }}{{ $.Values.stripe.key | quote }}{{ end }}
            path: api-key
    {{- with $.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "duesday.egress" -}}
{{- with .Values.networkPolicy }}
{{- if not (kindIs "invalid" .dnsPort) }}
- ports:
    - {protocol: UDP, port: {{ .dnsPort | int }}}
    - {protocol: TCP, port: {{ .dnsPort | int }}}
{{- end }}
{{- range list .postgresPort .httpsPort .apiServerPort }}
{{- if not (kindIs "invalid" .) }}
- ports:
    - {protocol: TCP, port: {{ . | int }}}
{{- end }}
{{- end }}
{{- with .extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
