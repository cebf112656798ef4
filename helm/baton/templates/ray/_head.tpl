{{/* The head: Ray's own state, Serve's controller and the autoscaler. No replica runs here. */}}
{{- define "baton.headGroup" -}}
rayStartParams:
  dashboard-host: 0.0.0.0
  object-store-memory: {{ mul (int .Values.ray.objectStoreMi) 1048576 | quote }}
resources:
  CPU: "0"
  GPU: "0"
template:
  metadata:
    {{- include "baton.rayMetadata" (dict "root" . "component" "head" "values" .Values.head) | nindent 4 }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "baton.headServiceAccount" . }}
    automountServiceAccountToken: true
    enableServiceLinks: false
    terminationGracePeriodSeconds: 30
    securityContext:
      {{- include "baton.podSecurityContext" . | nindent 6 }}
    {{- include "baton.pullSecrets" . | nindent 4 }}
    {{- include "baton.placement" .Values.head | nindent 4 }}
    containers:
      - name: ray-head
        image: {{ include "baton.plainImage" (dict "root" . "image" .Values.head.image) }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        ports:
          - {name: gcs, containerPort: 6379}
          - {name: dashboard, containerPort: 8265}
          - {name: metrics, containerPort: 8080}
          - {name: serve, containerPort: 8000} # no process listens: the operator creates a Service from it, and fails without it
        env:
          {{- $own := printf "%s\n%s" (include "baton.rayEnv" (dict "root" .)) (include "baton.noGPUEnv" .) }}
          {{- include "baton.env" (dict "own" $own "extra" .Values.head.extraEnv "key" "head.extraEnv") | nindent 10 }}
        resources:
          {{- $size := dict "cpu" (printf "%dm" (int64 (mulf .Values.head.cpu 1000))) "memory" (printf "%dMi" (int64 (mulf .Values.head.memoryGi 1024))) }}
          {{- $storage := include "baton.ephemeralStorage" (dict "root" . "sizes" (list .Values.tmpSizeLimit "1Gi") "withoutModel" true) }}
          {{- include "baton.resources" (dict "resources" (dict "requests" $size "limits" $size) "storage" $storage) | nindent 10 }}
        securityContext:
          {{- include "baton.containerSecurityContext" . | nindent 10 }}
        {{- include "baton.rayProbes" . | nindent 8 }}
        volumeMounts:
          {{- include "baton.rayMounts" . | nindent 10 }}
          {{- /* Not by subPath: such a file is not updated after the pod has started. */}}
          - name: scaling
            mountPath: /etc/baton/scaling
            readOnly: true
          {{- with .Values.head.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
      {{- with .Values.head.extraContainers }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    volumes:
      {{- include "baton.rayVolumes" (dict "root" . "shmGi" .Values.head.shmGi) | nindent 6 }}
      - name: scaling
        configMap:
          name: {{ include "baton.fullname" . }}-scaling
      - name: autoscaler-tmp
        emptyDir:
          sizeLimit: 1Gi
      {{- with .Values.head.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}
