module github.com/lockscope/lockscope/clients/go

go 1.22
