module millrace/compat/franz-go-audit

go 1.24.0

require (
	github.com/twmb/franz-go v1.20.7
	millrace/audit v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/klauspost/compress v1.18.4 // indirect
	github.com/pierrec/lz4/v4 v4.1.25 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.12.0 // indirect
	golang.org/x/crypto v0.48.0 // indirect
)

replace millrace/audit => ../../../plugins/go
