module once.example/clients

go 1.21

require (
	github.com/lib/pq v1.10.9
	once.invalid/once v0.0.0-00010101000000-000000000000
)

replace once.invalid/once => ../../../clients/go
