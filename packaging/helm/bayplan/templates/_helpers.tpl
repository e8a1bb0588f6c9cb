{{- /* The labels of everything; of a component also its own. */ -}}
{{- define "bayplan.labels" -}}
{{ include "bayplan.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "bayplan.selector" -}}
app.kubernetes.io/name: bayplan
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* Where pods run, of both components. */ -}}
{{- define "bayplan.scheduling" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* User and group bayplan-agent of the image (Containerfile). */ -}}
{{- define "bayplan.agentUser" -}}9476{{- end }}

{{/* Whether the agents serve resource claims; empty if not. */}}
{{- define "bayplan.claims" -}}
{{- if and .Values.agent.enabled (has "claims" .Values.agent.clusterTasks) }}true{{ end }}
{{- end }}
