{{/* The volume of the model cache: root, and for a router `withoutWeights`. */}}
{{- define "baton.modelVolume" -}}
- name: models
  {{- with .root.Values.modelCache }}
  {{- if eq .type "pvc" }}
  persistentVolumeClaim:
    claimName: {{ .pvc.existingClaim | default (printf "%s-models" (include "baton.fullname" $.root)) }}
    {{- if .readOnly }}
    readOnly: true
    {{- end }}
  {{- else if eq .type "hostPath" }}
  hostPath:
    path: {{ .hostPath }}
    type: Directory
  {{- else }}
  emptyDir:
    sizeLimit: {{ ternary "1Gi" .sizeLimit (not (not $.withoutWeights)) }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Disk that a pod's emptyDirs may use, as a request of its main container: root, sizes, and for a router `withoutWeights`.
     Without it, pods are placed on nodes whose disks are full, and evicted there. */}}
{{- define "baton.ephemeralStorage" -}}
{{- if .root.Values.ephemeralStorageRequests -}}
{{- $sizes := .sizes -}}
{{- with .root.Values.modelCache -}}
{{- if and (eq .type "emptyDir") (not $.withoutModel) -}}
{{- $sizes = append $sizes (ternary "1Gi" .sizeLimit (not (not $.withoutWeights))) -}}
{{- end -}}
{{- end -}}
{{- $bytes := 0.0 -}}
{{- range $sizes -}}{{- $bytes = addf $bytes (float64 (include "baton.bytes" .)) -}}{{- end -}}
{{- printf "%dMi" (int64 (ceil (divf $bytes 1048576))) -}}
{{- end -}}
{{- end }}

{{/* Downloads the model into the cache, unless it is there: of several containers with one cache, only one downloads. */}}
{{- define "baton.fetchContainer" -}}
{{- $root := .root -}}
- name: fetch
  image: {{ .image }}
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
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command:
    - baton
    - fetch
    - {{ .root.Values.model }}
    - {{ include "baton.modelPath" .root }}
    - --wait
  env:
    {{- include "baton.writableEnv" .root | nindent 4 }}
    {{- include "baton.noGPUEnv" .root | nindent 4 }}
  resources:
    {{- toYaml .root.Values.modelCache.resources | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurityContext" .root | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ .root.Values.modelCache.mountPath }}
      readOnly: true
{{- end }}

{{/* Init containers that provide a serving pod's model: root, image, and for a router `withoutWeights`. */}}
{{- define "baton.modelContainers" -}}
{{- if include "baton.jobFetches" .root }}
initContainers:
  {{- include "baton.awaitContainer" . | nindent 2 }}
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
