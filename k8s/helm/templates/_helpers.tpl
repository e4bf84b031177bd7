{{- define "streamd.selector" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end }}

{{- define "streamd.labels" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "streamd.keys" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" .Release.Name) }}
{{- end }}

{{/* A role's container. Given: root, role, port (its name) and number. Only serve has a readiness probe. */}}
{{- define "streamd.container" -}}
name: {{ .role }}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
args: [run, --role, {{ .role }}]
envFrom: [{configMapRef: {name: {{ .root.Release.Name }}}}]
ports: [{name: {{ .port }}, containerPort: {{ .number }}}]
startupProbe:
  httpGet: {path: /livez, port: {{ .number }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ .root.Values.startupFailureThreshold }}
livenessProbe:
  httpGet: {path: /livez, port: {{ .number }}}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
{{- if eq .role "serve" }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .number }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}
resources: {{ index .root.Values.resources .role | toJson }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: cache, mountPath: /cache}
  - {name: tmp, mountPath: /tmp}
  - {name: keys, mountPath: /etc/streamd/keys, readOnly: true}
  {{- if ne .role "train" }}
  - {name: kafka, mountPath: /etc/streamd/kafka, readOnly: true}
  {{- end }}
{{- end }}
