{{- /*
A role's container. Given: root, role, port (its name), number, and where it is not the default: command, args, env (a list),
mounts (names of volumes), probes (false for none). Only serve has a readiness probe.
*/}}
{{- define "streamd.container" -}}
{{- $values := .root.Values }}
{{- $ha := eq $values.mode "ha" }}
{{- $resources := index $values.resources .role }}
{{- if and $values.gpu.enabled (eq .role "train") }}
{{- $resources = mergeOverwrite (deepCopy $resources) (dict "limits" (dict $values.gpu.resource 1)) }}
{{- end }}
{{- $brokers := or $ha (ne .role "train") }}
{{- $mounts := .mounts | default (list "cache" "tmp" "keys") }}
name: {{ .role }}
image: {{ include "streamd.image" .root | quote }}
{{- with $values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with .command }}
command: {{ toJson . }}
{{- end }}
args: {{ .args | default (list "run" "--role" .role) | toJson }}
envFrom:
  - configMapRef: {name: {{ .root.Release.Name }}}
  {{- if $ha }}
  - secretRef: {name: {{ $values.storeSecret | default (printf "%s-store" .root.Release.Name) }}, optional: true}
  {{- end }}
  {{- with $values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with concat (.env | default list) $values.extraEnv }}
env: {{ toJson . }}
{{- end }}
ports: {{ .ports | default (list (dict "name" .port "containerPort" .number)) | toJson }}
{{- if ne .probes false }}
startupProbe: {{ dict "httpGet" (dict "path" "/livez" "port" .number) | mergeOverwrite (deepCopy $values.probes.startup) | toJson }}
livenessProbe: {{ dict "httpGet" (dict "path" "/livez" "port" .number) | mergeOverwrite (deepCopy $values.probes.liveness) | toJson }}
{{- if eq .role "serve" }}
readinessProbe: {{ dict "httpGet" (dict "path" "/readyz" "port" .number) | mergeOverwrite (deepCopy $values.probes.readiness) | toJson }}
{{- end }}
{{- end }}
resources: {{ toJson $resources }}
securityContext: {{ toJson $values.securityContext }}
volumeMounts:
  - {name: data, mountPath: /data}
  {{- range $mounts }}
  {{- if eq . "keys" }}
  - {name: keys, mountPath: /etc/streamd/keys, readOnly: true}
  {{- else }}
  - {name: {{ . }}, mountPath: /{{ . }}}
  {{- end }}
  {{- end }}
  {{- if $brokers }}
  - {name: kafka, mountPath: /etc/streamd/kafka, readOnly: true}
  {{- end }}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* The fields of every pod, before its containers. Given: root. */}}
{{- define "streamd.pod" -}}
{{- $values := .Values }}
serviceAccountName: {{ .Release.Name }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
securityContext: {{ toJson $values.podSecurityContext }}
{{- with $values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.initContainers }}
initContainers: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* Tolerations of a pod. Given: root, gpu (whether its trainer takes one). */}}
{{- define "streamd.tolerations" -}}
{{- $tolerations := .root.Values.tolerations }}
{{- if and .gpu .root.Values.gpu.enabled }}
{{- $tolerations = append $tolerations (dict "key" .root.Values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* The volumes other than the log's. Given: root, and kafka: false if the pod reaches no broker. */}}
{{- define "streamd.volumes" -}}
{{- $values := .root.Values }}
- {name: cache, emptyDir: {sizeLimit: 1Gi}}
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
- {name: keys, secret: {secretName: {{ include "streamd.keys" .root }}, defaultMode: 0440}}
{{- if ne .kafka false }}
- {name: kafka, secret: {secretName: {{ $values.kafkaSecret | default (printf "%s-kafka" .root.Release.Name) }}, defaultMode: 0440, optional: true}}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The claim of a volume for the log. Given: root, mode of access. */}}
{{- define "streamd.claim" -}}
accessModes: [{{ .mode }}]
{{- with .root.Values.storage.className }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .root.Values.storage.size }}}}
{{- end }}

{{- /* Every pod may reach DNS, and the DNS cache on its node. */}}
{{- define "streamd.names" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    - ipBlock: {cidr: 169.254.20.10/32}
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{- define "streamd.annotations" -}}
checksum/config: {{ include "streamd.config" . | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
