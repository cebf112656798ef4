{{/* The file for `baton router --config`. The registry's URL, which may have a password, is passed in BATON_REGISTRY. */}}
{{- define "baton.routerConfig" -}}
model: {{ include "baton.modelPath" . | quote }}
{{- with include "baton.tokenizerPath" . }}
tokenizer: {{ . | quote }}
{{- end }}
{{- with (.Values.decode.engine | default dict).hfOverrides | default (.Values.engine | default dict).hfOverrides }}
hf_overrides: {{ toJson . | quote }}
{{- end }}
served_model_name: {{ include "baton.servedModelName" . | quote }}
host: 0.0.0.0
port: 8000
processes: {{ .Values.router.processes }}
drain_timeout_s: {{ .Values.drainTimeoutSeconds }}
slo: ttft={{ .Values.slo.ttftSeconds }}s,tpot={{ .Values.slo.tpotSeconds }}s
{{- with .Values.tracing.endpoint }}
otlp_traces_endpoint: {{ . | quote }}
trace_sample_ratio: {{ $.Values.tracing.sampleRatio }}
{{- end }}
{{- if .Values.router.grpc }}
grpc_port: 9000
{{- end }}
{{- if .Values.auth.apiKeys.existingSecret }}
api_keys_file: /etc/baton/keys/keys.yaml
protect_operations: {{ .Values.auth.protectOperations }}
{{- end }}
{{- if .Values.auth.sharedCache }}
shared_cache: true
{{- end }}
{{- if .Values.tls.internal.enabled }}
tls_cert: /etc/baton/tls/tls.crt
tls_key: /etc/baton/tls/tls.key
tls_ca: /etc/baton/tls/ca.crt
tls_server_name: {{ .Values.tls.internal.serverName }}
{{- end }}
{{- if .Values.tls.https.enabled }}
ssl_certfile: /etc/baton/https/tls.crt
ssl_keyfile: /etc/baton/https/tls.key
{{- end }}
{{- if .Values.lora.enabled }}
enable_lora: true
{{- with .Values.lora.modules }}
lora_modules:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.lora.dir }}
lora_dir: {{ . | quote }}
{{- end }}
{{- end }}
{{- if .Values.router.files.existingClaim }}
files_dir: /var/lib/baton/files
{{- end }}
{{- $config := fromYaml (include "baton.options" .Values.router.config) }}
{{- if include "baton.scalesToZero" . }}
{{- $config = merge $config (dict "cold_start_timeout_s" (include "baton.startTimeoutSeconds" . | float64)) }}
{{- end }}
{{- with $config }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "baton.routerEnv" -}}
{{- include "baton.writableEnv" . }}
{{ include "baton.noGPUEnv" . }}
- name: PYTHONUNBUFFERED
  value: "1"
- name: HF_HUB_OFFLINE
  value: "1"
- name: BATON_REGISTRY
  valueFrom:
    secretKeyRef:
      name: {{ include "baton.registrySecret" . }}
      key: {{ include "baton.registryKey" . }}
{{- end }}
