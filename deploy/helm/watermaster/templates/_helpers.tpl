{{- define "watermaster.name" -}}
{{- /* At most 40 characters: a StatefulSet appends a hash and a number, and instance_id is a pod's name. */ -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "watermaster.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "watermaster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "watermaster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "watermaster.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "watermaster.name" . }}
{{- else }}default
{{- end }}
{{- end }}

{{- define "watermaster.adminSecret" -}}
{{- .Values.admin.existingSecret | default (printf "%s-admin" (include "watermaster.name" .)) }}
{{- end }}

{{- define "watermaster.config" -}}
{{- required "config is empty: give the text of watermaster.toml, for instance by --set-file config=watermaster.toml" .Values.config | trim }}
{{- end }}

{{- /* files/rules and files/dashboards are symbolic links, which some tools omit when they fetch a chart. */ -}}
{{- define "watermaster.files" -}}
{{- if not (.root.Files.Glob .pattern) -}}
{{- fail (printf "the chart has no %s: use a chart that `scripts/chart package` made, or a checkout with its symbolic links" .pattern) -}}
{{- end -}}
{{- end }}

{{- /* The page that alerts link to. `scripts/chart package` writes the repository's address into Chart.yaml. */ -}}
{{- define "watermaster.runbooks" -}}
{{- if .Values.prometheusRule.runbooks }}{{ .Values.prometheusRule.runbooks }}
{{- else if .Chart.Home }}{{ .Chart.Home }}/blob/v{{ .Chart.AppVersion }}/docs/runbooks.md
{{- else }}{{ fail "prometheusRule.runbooks is empty: give the address at which you publish docs/runbooks.md, so that alerts can link to it" }}
{{- end }}
{{- end }}

{{- define "watermaster.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "watermaster.pod.security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}
