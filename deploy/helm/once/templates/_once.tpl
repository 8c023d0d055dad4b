{{- define "once.labels" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- define "once.sqlite" -}}
{{- if hasPrefix "sqlite:" .Values.store }}true{{ end }}
{{- end }}

{{- define "once.replicas" -}}
{{- if hasKey .Values "replicas" }}{{ int .Values.replicas }}{{ else if include "once.sqlite" . }}1{{ else }}2{{ end }}
{{- end }}

{{- /* A value of TOML: JSON's text in quotes is TOML's too, and numbers here are whole ones. */ -}}
{{- define "once.toml" -}}
{{- if kindIs "slice" . }}[{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ include "once.toml" $one }}{{ end }}]
{{- else if kindIs "string" . }}{{ toRawJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else }}{{ int64 . }}
{{- end }}
{{- end }}

{{- define "once.settings" -}}
listen = "0.0.0.0:8080"
{{- if eq .Values.form "sidecar" }}
upstream = "http://127.0.0.1:{{ int .Values.app.port }}"
{{- else }}
upstream = {{ include "once.toml" .Values.upstream }}
{{- end }}
store = {{ include "once.toml" .Values.store }}
# The kubelet asks the pod's address, not 127.0.0.1.
admin = "0.0.0.0:{{ int .Values.admin.port }}"
admin-token-file = "/etc/once/admin/{{ .Values.admin.tokenSecret.key }}"
{{- range $name, $value := omit .Values.settings "route" }}
{{ $name }} = {{ include "once.toml" $value }}
{{- end }}
{{- range $route := .Values.settings.route }}

[[route]]
{{- range $name, $value := $route }}
{{ $name }} = {{ include "once.toml" $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of a server. The store is in ONCE_STORE, where commands in the pod find it too. */ -}}
{{- define "once.serveArgs" -}}
- serve
- --listen=0.0.0.0:7117
- --tls-cert=/etc/once/serve-tls/tls.crt
- --tls-key=/etc/once/serve-tls/tls.key
{{- with .Values.serve.tokenSecret }}
- --token-file=/etc/once/serve-clients/{{ .key }}
{{- end }}
{{- with .Values.serve.clientCaSecret }}
- --client-ca=/etc/once/serve-clients/{{ .key }}
{{- end }}
# The kubelet asks the pod's address, not 127.0.0.1.
- --admin=0.0.0.0:{{ int .Values.admin.port }}
- --admin-token-file=/etc/once/admin/{{ .Values.admin.tokenSecret.key }}
{{- range $name, $value := .Values.serve.options }}
- {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value ($value | int64 | toString)) | toRawJson }}
{{- end }}
{{- end }}

{{- /* What both kinds of program have, by the same names. */ -}}
{{- define "once.option" -}}
{{- $all := eq .all.Values.form "server" | ternary (dig "options" dict (.all.Values.serve | default dict)) .all.Values.settings }}
{{- get $all .name }}
{{- end }}

{{- define "once.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532  # May read the token{{ if include "once.sqlite" . }}, and write the volume{{ end }}.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "once.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "once.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Whose pods these are, and on which nodes. */ -}}
{{- define "once.placing" -}}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.Values $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "once.secretVolumes" -}}
{{- range .Values.secretMounts }}
- name: {{ .name }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    {{- with .keys }}
    items:
      {{- range . }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{- define "once.container" -}}
- name: once
  image: {{ include "once.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq .Values.form "sidecar" }}
  restartPolicy: Always
  {{- end }}
  {{- if eq .Values.form "server" }}
  args:
    {{- include "once.serveArgs" . | nindent 4 }}
  env:
    - {name: ONCE_STORE, value: {{ toRawJson .Values.store }}}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- else }}
  args: [proxy, --config, /etc/once/proxy/proxy.toml]
  {{- with .Values.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  ports:
    {{- if eq .Values.form "server" }}
    - {name: claims, containerPort: 7117}
    {{- else }}
    - {name: http, containerPort: 8080}
    {{- end }}
    - {name: admin, containerPort: {{ int .Values.admin.port }}}
  {{- if ne .Values.form "sidecar" }}
  lifecycle:
    preStop: {sleep: {seconds: {{ int .Values.preStopSeconds }}}}  # Until no more new connections come.
  {{- end }}
  readinessProbe:
    httpGet: {path: /readyz, port: admin}
    {{- toYaml .Values.probes.readiness | nindent 4 }}
  livenessProbe:  # Not /readyz: a store that is gone is not mended by a restart.
    httpGet: {path: /healthz, port: admin}
    {{- toYaml .Values.probes.liveness | nindent 4 }}
  resources:  # No limit for the CPU: a throttled proxy renews its leases late.
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- include "once.security" . | nindent 4 }}
  volumeMounts:
    {{- if eq .Values.form "server" }}
    - {name: serve-tls, mountPath: /etc/once/serve-tls, readOnly: true}
    - {name: serve-clients, mountPath: /etc/once/serve-clients, readOnly: true}
    {{- else }}
    - {name: settings, mountPath: /etc/once/proxy, readOnly: true}
    {{- end }}
    - {name: admin, mountPath: /etc/once/admin, readOnly: true}
    {{- range .Values.secretMounts }}
    - {name: {{ .name }}, mountPath: /etc/once/{{ .name }}, readOnly: true}
    {{- end }}
    {{- if include "once.sqlite" . }}
    - {name: records, mountPath: /var/lib/once}
    {{- end }}
{{- end }}
