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

{{- /* (dict "root" $ "command" …): the command's flags as environment variables, so that a rerun can override one. */}}
{{- define "duesday.settings" -}}
{{- $ := .root }}
{{- $command := .command }}
{{- with $.Values.billing }}
- name: DUESDAY_CUSTOMERS
  value: {{ .customers | quote }}
{{- if ne $command "reconcile" }}
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
- name: DUESDAY_SPEND_CAP_FACTOR
  value: {{ .spendCapFactor | toString | quote }}
{{- end }}
{{- if ne $command "plan" }}
- name: DUESDAY_RATE
  value: {{ .rate | toString | quote }}
- name: DUESDAY_WORKERS
  value: {{ .workers | int | quote }}
{{- end }}
{{- end }}
{{- if eq .command "run" }}
- name: DUESDAY_LEASE_NAME
  value: {{ include "duesday.fullname" $ }}
{{- if gt (int $.Values.shards) 1 }}
- name: DUESDAY_SHARDS
  value: {{ $.Values.shards | int | quote }}
{{- end }}
{{- else if eq .command "reconcile" }}
- name: DUESDAY_RETRY_DECLINED
  value: {{ $.Values.reconcile.retryDeclined | quote }}
{{- end }}
{{- end }}

{{- /* Who runs in which Job: what the election, and the period that the Job was scheduled for, want to know. */}}
{{- define "duesday.identity" -}}
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
{{- end }}

{{- /* Stripe, for who talks to it by itself. */}}
{{- define "duesday.stripeEnv" -}}
- name: STRIPE_API_KEY_FILE
  value: /var/run/secrets/duesday/stripe/api-key
{{- with .Values.stripe.apiBase }}
- name: STRIPE_API_BASE
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Stripe, for who talks to it through the proxy. */}}
{{- define "duesday.vaultEnv" -}}
- name: STRIPE_API_BASE
  value: http://{{ include "duesday.proxyName" . }}:8080
- name: DUESDAY_VAULT_URL
  value: http://{{ include "duesday.proxyName" . }}:8081
{{ include "duesday.adminEnv" . }}
{{- end }}

{{- define "duesday.adminEnv" -}}
- name: DUESDAY_ADMIN_TOKEN_FILE
  value: /var/run/secrets/duesday/admin/token
{{- end }}

{{- /* Who is told how a run ended. */}}
{{- define "duesday.notifyEnv" -}}
- name: DUESDAY_NOTIFY_URL_FILE
  value: /var/run/secrets/duesday/notify/url
{{- if .Values.notify.signingKey }}
- name: DUESDAY_NOTIFY_SECRET_FILE
  value: /var/run/secrets/duesday/notify/signing-key
{{- end }}
{{- end }}

{{- /* (list $ "stripe" "admin" "notify"): where the named secrets are mounted, and what the user adds. */}}
{{- define "duesday.mounts" -}}
{{- range rest . }}
- name: {{ . }}
  mountPath: /var/run/secrets/duesday/{{ . }}
  readOnly: true
{{- end }}
{{- with (first .).Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "duesday.volumes" -}}
{{- $ := first . }}
{{- range rest . }}
- name: {{ . }}
  secret:
    {{- if eq . "stripe" }}
    secretName: {{ include "duesday.stripeSecret" $ | quote }}
    items:
      - key: {{ if $.Values.stripe.apiKey }}api-key{{ else }}{{ $.Values.stripe.key | quote }}{{ end }}
        path: api-key
    {{- else if eq . "notify" }}
    secretName: {{ $.Values.notify.existingSecret | quote }}
    items:
      - key: {{ $.Values.notify.key | quote }}
        path: url
      {{- with $.Values.notify.signingKey }}
      - key: {{ . | quote }}
        path: signing-key
      {{- end }}
    {{- else }}
    secretName: {{ include "duesday.adminSecret" $ | quote }}
    items:
      - key: {{ if $.Values.proxy.adminToken.token }}admin-token{{ else }}{{ $.Values.proxy.adminToken.key | quote }}{{ end }}
        path: token
    {{- end }}
{{- end }}
{{- with $.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* (dict "root" $ "component" … "constraints" …): the constraints, or where there are none to prefer different nodes. */}}
{{- define "duesday.spread" -}}
{{- if kindIs "invalid" .constraints }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "duesday.selector" (list .root .component) | nindent 8 }}
{{- else if .constraints }}
topologySpreadConstraints:
  {{- toYaml .constraints | nindent 2 }}
{{- end }}
{{- end }}

{{- /* (dict "root" $ "component" … "annotations" …): a pod's labels and annotations; it changes with the chart's own secrets. */}}
{{- define "duesday.podMeta" -}}
{{- $ := .root }}
labels:
  {{- include "duesday.podLabels" (list $ .component) | nindent 2 }}
{{- $checksums := dict }}
{{- with include (print $.Template.BasePath "/secrets.yaml") $ | trim }}
{{- $_ := set $checksums "checksum/secrets" (sha256sum .) }}
{{- end }}
{{- with merge $checksums (default dict .annotations) (default dict $.Values.podAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* (dict "root" $ "command" "run", "reconcile" or "plan"): a pod that runs the command once. */}}
{{- define "duesday.jobPod" -}}
{{- $ := .root }}
{{- $runs := eq .command "run" }}
{{- $proxied := $.Values.proxy.enabled }}
{{- $measured := and $.Values.metrics.enabled (ne .command "plan") }}
{{- $secrets := list }}
{{- if ne .command "plan" }}
{{- $secrets = list (ternary "admin" "stripe" $proxied) }}
{{- if $.Values.notify.existingSecret }}
{{- $secrets = append $secrets "notify" }}
{{- end }}
{{- end }}
metadata:
  {{- include "duesday.podMeta" (dict "root" $ "component" .command) | trim | nindent 2 }}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: {{ $.Values.terminationGracePeriodSeconds | int }}
  serviceAccountName: {{ include "duesday.serviceAccountName" $ }}
  automountServiceAccountToken: {{ $runs }}
  enableServiceLinks: false
  {{- with include "duesday.placement" $ }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "duesday.podSecurity" $ | nindent 4 }}
  {{- if $runs }}
  {{- with include "duesday.spread" (dict "root" $ "component" .command "constraints" $.Values.topologySpreadConstraints) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
  containers:
    - name: duesday
      image: {{ include "duesday.image" $ | quote }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args:
        - {{ .command }}
        {{- if $runs }}
        {{- with $.Values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- end }}
      env:
        {{- include "duesday.settings" . | trim | nindent 8 }}
        {{- include "duesday.databaseEnv" $ | nindent 8 }}
        {{- if $secrets }}
        {{- include (ternary "duesday.vaultEnv" "duesday.stripeEnv" $proxied) $ | nindent 8 }}
        {{- end }}
        {{- if has "notify" $secrets }}
        {{- include "duesday.notifyEnv" $ | nindent 8 }}
        {{- end }}
        {{- if $runs }}
        {{- include "duesday.identity" $ | nindent 8 }}
        {{- end }}
        {{- if $measured }}
        {{- include "duesday.metricsEnv" . | nindent 8 }}
        {{- end }}
        {{- with $.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $measured }}
      ports:
        - {name: metrics, containerPort: {{ $.Values.metrics.port | int }}, protocol: TCP}
      {{- end }}
      {{- with $.Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "duesday.containerSecurity" $ | nindent 8 }}
      {{- with include "duesday.mounts" (prepend $secrets $) | trim }}
      volumeMounts:
        {{- . | nindent 8 }}
      {{- end }}
  {{- with include "duesday.volumes" (prepend $secrets $) | trim }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
