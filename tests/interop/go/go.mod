module leasehold/interop

go 1.25.0

require (
	github.com/go-redsync/redsync/v4 v4.17.0
	github.com/gomodule/redigo v1.9.3
)
