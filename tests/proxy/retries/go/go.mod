module retries

go 1.18

require github.com/hashicorp/go-retryablehttp v0.7.7

require github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
