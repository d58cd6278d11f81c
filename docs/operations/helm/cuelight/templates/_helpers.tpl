{{- /* The name of every object: the release, and the chart unless the release has its name. */ -}}
{{- define "cuelight.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- /* The labels by which objects find their pods. They never change. */ -}}
{{- define "cuelight.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cuelight.labels" -}}
{{ include "cuelight.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "cuelight.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "cuelight.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- /* A value in TOML. Helm reads every number as a float, but most settings are whole numbers. */ -}}
{{- define "cuelight.value" -}}
{{- if kindIs "slice" . -}}
[{{ range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "cuelight.value" $item }}{{ end }}]
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}

{{- /* The configuration file: the values of `config`, and what the chart decides. */ -}}
{{- define "cuelight.config" -}}
{{- $server := dict "host" "0.0.0.0" "port" 8080 "drain_timeout" (printf "%ds" (int .Values.drainSeconds)) -}}
{{- if .Values.modelsDir }}{{ $_ := set $server "models_dir" (printf "/models/%s" (trimPrefix "/models/" .Values.modelsDir)) }}{{ end -}}
{{- if .Values.secrets.apiKeys }}{{ $_ := set $server "api_key_file" "/etc/cuelight/secrets/keys" }}{{ end -}}
{{- if .Values.batches.enabled }}{{ $_ := set $server "batches" "/batches" }}{{ end -}}
{{- if .Values.kvEvents.enabled }}
{{- $_ := set $server "kv_events" (printf "tcp://*:%d" (int .Values.kvEvents.port)) -}}
{{- $_ := set $server "kv_events_replay" (printf "tcp://*:%d" (int .Values.kvEvents.replayPort)) -}}
{{- $_ := set $server "kv_events_format" .Values.kvEvents.format -}}
{{- end -}}
{{- $model := dict -}}
{{- if .Values.gpu.enabled }}{{ $_ := set $model "device" "vulkan" }}{{ end -}}
{{- range $section, $settings := mergeOverwrite (dict "model" $model) (deepCopy .Values.config) (dict "server" $server) }}
[{{ $section }}]
{{- range $key, $value := $settings }}
{{ $key }} = {{ include "cuelight.value" $value }}
{{- end }}
{{ end -}}
{{- end -}}
