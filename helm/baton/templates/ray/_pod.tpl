{{/* A Ray pod: root, component, values, and the fields that only its kind has. */}}
{{- define "baton.rayProbes" -}}
{{- /* The node's own health. Serve checks an engine's (gRPC health, `liveness`), and replaces the replica, not the pod with its
      other replicas. */ -}}
startupProbe:
  httpGet: {path: /api/healthz, port: 52365}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /api/healthz, port: 52365}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /api/healthz, port: 52365}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 12
{{- end }}

{{- define "baton.rayEnv" -}}
{{- include "baton.writableEnv" .root }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: PYTHONUNBUFFERED
  value: "1"
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: HF_HUB_OFFLINE
  value: "1"
{{- if .root.Values.head.faultTolerance.enabled }}
- name: RAY_gcs_rpc_server_reconnect_timeout_s
  value: {{ .root.Values.head.faultTolerance.reconnectTimeoutSeconds | quote }}
{{- end }}
{{- end }}

{{- define "baton.rayMounts" -}}
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
- name: registry
  mountPath: /etc/baton/registry
  readOnly: true
{{- if .Values.tls.internal.enabled }}
- name: tls
  mountPath: /etc/baton/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "baton.rayVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .root.Values.tmpSizeLimit }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ printf "%vGi" .shmGi }}
{{ include "baton.registryVolume" .root }}
{{- if .root.Values.tls.internal.enabled }}
- name: tls
  secret:
    secretName: {{ include "baton.tlsSecret" .root }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "baton.rayMetadata" -}}
labels:
  {{- include "baton.selectorLabels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with merge (dict) (.values.podLabels | default dict) (.root.Values.commonLabels | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (.values.podAnnotations | default dict) (.root.Values.commonAnnotations | default dict) }}
{{- if gt (int (include "baton.groupSize" .values)) 1 }}
{{- $_ := set $annotations "baton/expert-group" (include "baton.groupIdentity" (dict "root" .root "name" .component)) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "baton.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- end }}

{{/* Placement of a pod that should land where workers do: root, and its own values, of which null means the decode pool's;
     not their affinity to other pods, by which a second pod might have no place. */}}
{{- define "baton.placementLikeWorkers" -}}
{{- $values := dict -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "schedulerName" -}}
{{- $own := index $.values $key -}}
{{- $pool := index $.root.Values.decode $key -}}
{{- if eq $key "affinity" -}}{{- $pool = pick ($pool | default dict) "nodeAffinity" -}}{{- end -}}
{{- $_ := set $values $key (ternary $pool $own (kindIs "invalid" $own)) -}}
{{- end -}}
{{- include "baton.placement" $values -}}
{{- end }}
