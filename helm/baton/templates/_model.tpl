{{/* The volume of the model cache. */}}
{{- define "baton.modelVolume" -}}
- name: models
  {{- with .Values.modelCache }}
  {{- if eq .type "pvc" }}
  persistentVolumeClaim:
    claimName: {{ .pvc.existingClaim | default (printf "%s-models" (include "baton.fullname" $)) }}
  {{- else if eq .type "hostPath" }}
  hostPath:
    path: {{ .hostPath }}
    type: Directory
  {{- else }}
  emptyDir:
    sizeLimit: {{ .sizeLimit }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Downloads the model into the cache, unless it is there: of several containers with one cache, only one downloads. */}}
{{- define "baton.fetchContainer" -}}
{{- $root := .root -}}
- name: fetch
  image: {{ include "baton.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command:
    - baton
    - fetch
    - {{ $root.Values.model }}
    - {{ include "baton.modelPath" $root }}
    {{- if .withoutWeights }}
    - --without-weights
    {{- end }}
  env:
    {{- $own := include "baton.fetchEnv" $root }}
    {{- include "baton.env" (dict "own" $own "extra" $root.Values.modelCache.extraEnv "key" "modelCache.extraEnv") | nindent 4 }}
  resources:
    {{- toYaml $root.Values.modelCache.resources | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurityContext" $root | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ $root.Values.modelCache.mountPath }}
{{- end }}

{{/* Waits until the job has downloaded it. */}}
{{- define "baton.awaitContainer" -}}
- name: await-model
  image: {{ include "baton.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - baton
    - fetch
    - {{ .Values.model }}
    - {{ include "baton.modelPath" . }}
    - --wait
  env:
    {{- include "baton.writableEnv" . | nindent 4 }}
    {{- include "baton.noGPUEnv" . | nindent 4 }}
  resources:
    {{- toYaml .Values.modelCache.resources | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurityContext" . | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ .Values.modelCache.mountPath }}
      readOnly: true
{{- end }}

{{/* Init containers that provide a serving pod's model; for a router, `withoutWeights`. */}}
{{- define "baton.modelContainers" -}}
{{- if include "baton.jobFetches" .root }}
initContainers:
  {{- include "baton.awaitContainer" .root | nindent 2 }}
{{- else if include "baton.fetches" .root }}
initContainers:
  {{- include "baton.fetchContainer" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "baton.fetchEnv" -}}
{{- include "baton.writableEnv" . }}
{{ include "baton.noGPUEnv" . }}
{{- with .Values.modelCache }}
{{- with .hubEndpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if .hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .hubToken.existingSecret }}
      key: {{ .hubToken.key }}
{{- end }}
{{- end }}
{{- end }}
