module example.com/embedded

go 1.24

require github.com/twmb/franz-go v1.19.5
