{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "millrace.metadata" -}}
name: {{ .root.Release.Name }}-{{ .component }}
labels:
  {{- include "millrace.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "millrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{/* What every pod may do: nothing but write its volume and /tmp. */}}
{{- define "millrace.podSecurity" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "millrace.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "millrace.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "millrace.labels" . | nindent 8 }}
{{- end }}

{{/* The component's Secret, in place of nothing: a pod without it does not start. */}}
{{- define "millrace.security" -}}
- { name: security, secret: { secretName: {{ .root.Release.Name }}-{{ .component }}, defaultMode: 0440 } }
{{- end }}

{{/* Who a process is to brokers, ZooKeeper and the registry. */}}
{{- define "millrace.client" -}}
- { name: MILLRACE_CLIENT, value: /security/client.toml }
- { name: SSL_CERT_FILE, value: /security/ca.pem }
- name: MILLRACE_REGISTRY
  valueFrom: { secretKeyRef: { name: {{ .root.Release.Name }}-{{ .component }}, key: registry } }
{{- end }}

{{- define "millrace.bootstrap" -}}
{{ .Release.Name }}-bootstrap.{{ .Release.Namespace }}.svc:9092
{{- end }}

{{/* A registry or auditor: one pod with a database of its own, or one in PostgreSQL. */}}
{{- define "millrace.web" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "millrace.metadata" . | nindent 2 }}
spec:
  selector:
    {{- include "millrace.labels" . | nindent 4 }}
  ports:
    - { name: http, port: {{ .port }}, targetPort: http }
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "millrace.metadata" . | nindent 2 }}
spec:
  serviceName: {{ .root.Release.Name }}-{{ .component }}
  replicas: 1
  selector:
    matchLabels:
      {{- include "millrace.labels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "millrace.labels" . | nindent 8 }}
    spec:
      {{- include "millrace.podSecurity" .root | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "millrace.image" .root }}
          {{- include "millrace.containerSecurity" .root | nindent 10 }}
          args: {{ toJson (concat (list .component "--listen" (printf "0.0.0.0:%d" (int .port)) "--access" "/security/access.toml" "--certificate" "/security/certificate.pem") .args) }}
          env:
            {{- .environment | nindent 12 }}
            - name: MILLRACE_{{ upper .component }}_DATABASE_URL
              {{- if .values.databaseUrlSecret }}
              valueFrom: { secretKeyRef: { name: {{ .values.databaseUrlSecret }}, key: url } }
              {{- else }}
              value: sqlite:////data/{{ .component }}.db
              {{- end }}
          ports:
            - { name: http, containerPort: {{ .port }} }
          startupProbe: { tcpSocket: { port: http }, periodSeconds: 2, failureThreshold: 90 }
          readinessProbe: { {{ .ready }}, periodSeconds: 10, timeoutSeconds: 5 }
          livenessProbe: { tcpSocket: { port: http }, periodSeconds: 20, timeoutSeconds: 5 }
          resources: {{ toJson .root.Values.service.resources }}
          volumeMounts:
            - { name: data, mountPath: /data }
            - { name: security, mountPath: /security, readOnly: true }
            - { name: tmp, mountPath: /tmp }
      volumes:
        {{- include "millrace.security" . | nindent 8 }}
        - { name: tmp, emptyDir: {} }
        {{- if .values.databaseUrlSecret }}
        - { name: data, emptyDir: {} }
        {{- end }}
  {{- if not .values.databaseUrlSecret }}
  volumeClaimTemplates:
    - metadata: { name: data }
      spec:
        accessModes: [ReadWriteOnce]
        resources: { requests: { storage: {{ .values.storage }} } }
  {{- end }}
{{- end }}
