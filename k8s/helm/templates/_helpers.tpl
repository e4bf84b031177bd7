{{- /* Labels that select the pods of a component. Given: root, component. */}}
{{- define "streamd.selector" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
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

{{- define "streamd.image" -}}
{{- with .Values.image -}}
{{- $tag := .tag | default (printf "%s%s" $.Chart.AppVersion ($.Values.gpu.enabled | ternary "-cuda" "")) -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* The settings of a mode, and those of `config` above them, as JSON. */}}
{{- define "streamd.config" -}}
{{- $mode := dict }}
{{- if eq .Values.mode "ha" }}
{{- $_ := required "mode ha needs config.STREAMD_LOG__STORE, the URL of a store" .Values.config.STREAMD_LOG__STORE }}
{{- $member := gt (int .Values.members.count) 1 | ternary "standby" "leader" }}
{{- $mode = dict "STREAMD_LOG__NAME" .Release.Name "STREAMD_LOG__MEMBER" $member }}
{{- else if eq .Values.mode "ranks" }}
{{- $mode = dict "STREAMD_TRAINING__CHECKPOINT_DIR" "/data/log" }}
{{- end }}
{{- if .Values.gpu.enabled }}
{{- $_ := set $mode "STREAMD_DEVICE" "cuda" }}
{{- end }}
{{- if .Values.score.enabled }}
{{- $_ := required "score needs config.STREAMD_SERVER__SCORE_TOPIC, the topic of the scores" .Values.config.STREAMD_SERVER__SCORE_TOPIC }}
{{- end }}
{{- if .Values.trial.enabled }}
{{- $_ := required "trial needs config.STREAMD_TRIALS__NAME, and the arms and the topic of the trial" .Values.config.STREAMD_TRIALS__NAME }}
{{- end }}
{{- merge (deepCopy .Values.config) $mode | toJson }}
{{- end }}

{{- /* Whether callers reach the replicas, not the pod of the log. */}}
{{- define "streamd.answering" -}}
{{ eq .Values.mode "ha" | ternary "replica" "daemon" }}
{{- end }}

{{- /* A port that Prometheus scrapes. Given: root, port, role. */}}
{{- define "streamd.endpoint" -}}
port: {{ .port }}
path: /metrics
interval: {{ .root.Values.monitoring.interval }}
authorization: {type: Bearer, credentials: {name: {{ include "streamd.keys" .root }}, key: metrics_key}}
relabelings: [{targetLabel: role, replacement: {{ .role }}}]
{{- end }}
