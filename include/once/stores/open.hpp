// Opens a store, and the place for its large results, by URL: for programs whose users choose them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <once/offload.hpp>
#include <once/seal.hpp>
#include <once/store.hpp>

namespace once {

// Opens the store that the URL names:
//
//   memory:                          the memory of this process (once/stores/memory.hpp)
//   sqlite:/var/lib/pay/once.db      a file, by its whole path (once/stores/sqlite.hpp)
//   sqlite:once.db                   a file, seen from the working directory
//   postgresql://host:5432/database  a PostgreSQL server, in libpq's words (once/stores/postgresql.hpp); also postgres:
//   dynamodb://table                 a table of DynamoDB, by its name or ARN (once/stores/dynamodb.hpp)
//
// Parameters follow a '?', separated by '&', each at most once. sqlite: takes
//
//   create=0|1               make the file if it is missing; default 1
//   create_directories=0|1   make missing directories above it as well; default 0
//   allow_hard_links=0|1     open a file that has more names (hard links); default 0
//   read_only=0|1            only read, for people who look; default 0
//   allow_shared_file_system=0|1   open a file on FUSE, NFS and the like; default 0
//   busy_timeout=5s          how long a write waits for other programs; a number and ms, s, m or h; 0ms to 10m
//   work_timeout=1s          how long the user's own writes, which commit with a result, may run; 1ms to 1m
//   checkpoint_pages=4000    pages of 4 KiB that the log grows by between two copies into the file; 100 to 1000000
//   cache_bytes=8388608      what the writer keeps of the file in memory; 1048576 to 4294967296
//   recent_keys=32768        keys that gather in memory before they are indexed together; 1 to 1000000
//
// dynamodb: takes, each the option of DynamoDbOptions with its name and its default,
//
//   region=eu-central-1  endpoint=http://127.0.0.1:8000  profile=NAME  ca_file=PATH
//   request_timeout=3s  operation_timeout=10s
//   dialect=native|powertools-python|powertools-typescript|powertools-java|powertools-dotnet
//   partition_key=id  sort_key=NAME  partition_value=TEXT
//   attribute.status=NAME      the name of an attribute, for each member of DynamoDbAttributes
//   use_index=if_there|always|never  index=open  index_shards=8
//   consistent_fallback=0|1  read_first_over=4096  count_capacity=0|1
//
// postgresql: takes, each the option of PostgresqlOptions with its name and its default,
//
//   schema=once  operation_timeout=10s  lock_timeout=100ms  group=256  write_connections=1  side_connections=4
//   allow_unsafe=0|1
//
// All its other parameters are libpq's (sslmode, connect_timeout, target_session_attrs …), which refuses unknown ones.
// A URL with a password is readable by other users in a command line: use ~/.pgpass or PGPASSFILE.
//
// Every store takes
//
//   seal=/etc/once/seal.keys   encrypt what is kept with the keys in this file (once/seal.hpp); not for tables that
//                              other programs read. Keys that KMS encrypted are asked for now, as once/seal_kms.hpp
//                              says
//   seal_command=COMMAND       the same with the keys that this command prints; not both
//   write_clear=0|1            with keys: open what is sealed, and write in the clear. sqlite: and postgresql: take it
//                              without keys too (SqliteOptions::allow_clear, PostgresqlOptions::allow_clear). Default 0
//   read_clear=0|1             with keys: 0 believes sealed records only, and one in the clear fails as corrupt
//                              (SealReads::sealed). Default 1
//
// sqlite: and postgresql: take
//
//   moves_to=URL               the store, of either kind, that its records move to (once/move.hpp). It is used from the
//                              end of the move on (once/stores/moving.hpp), and opened no earlier. '&', '%' and '#' in
//                              it are escaped again. With it, create= is 0 unless it is given. The second URL has no
//                              seal=, seal_command=, read_clear=, write_clear= or offload=: those of the first count
//                              for both stores
//
// once:///run/once.sock, once://HOST:PORT and once+STORE, such as once+sqlite:/var/lib/pay/once.db, name a `once serve`
// that keeps the records (once/stores/server.hpp). The last one is started when it is needed. once:// takes, each the
// option of ServerOptions with its name and its default,
//
//   timeout=10s  token_file=PATH  ca_file=PATH  cert_file=PATH  key_file=PATH  tls=0|1
//
// All but the first are for addresses. The parameters of once+STORE are the store's.
//
// %XX is a byte, in paths and values. escape_url() writes '%', '?', '#', '&' and unprintable bytes that way. A '#' must
// be escaped. File paths have no "//": sqlite:///file is refused.
//
// A build without ONCE_AWS does not know dynamodb:, s3: and once:. A build without ONCE_SQLITE does not know sqlite:,
// one without ONCE_POSTGRESQL does not know postgresql:.
//
// Throws Exception(misuse) for an unknown scheme, and for a parameter that is unknown, given twice or malformed. The
// text names the fault and what is known. Also the exceptions of the store's own factory. Thread-safe.
std::unique_ptr<Store> open_store(std::string_view url);

// Opens the place for results that are too large for a record, by the same rules:
//
//   file:/var/lib/pay/results        a directory, made if it is missing (once/offload/directory.hpp)
//   s3://bucket/prefix               objects in S3 whose names begin with prefix/ (once/offload/s3.hpp)
//
// Both take seal=FILE, seal_command=COMMAND and, with either, write_clear=1, as stores do. file: takes no other
// parameters. s3: takes
//
//   region=eu-central-1   default: AWS_REGION, AWS_DEFAULT_REGION, or the profile's
//   endpoint=URL          of another server that speaks S3; default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the
//                         profile's, or AWS's own in the region
//   profile=NAME          of ~/.aws/config and ~/.aws/credentials; default: AWS_PROFILE
//   ca_file=PATH          PEM, the certificates to trust; default: the system's
//   path_style=0|1        the bucket stands in the path; default 1 at endpoints that are not AWS's own, else 0
//   timeout=60s           for one request with all its bytes; 1ms to 1h
std::shared_ptr<Offload> open_offload(std::string_view url);

// A store and its offload, if any: two members of EngineOptions.
struct Backend {
  std::shared_ptr<Store> store = {};      // Not null. Sealed, if the URL has keys.
  std::shared_ptr<Offload> offload = {};  // Empty: the URL names none.
  SealKeys seal_keys = {};                // What seals the store, for an offload that is opened apart. Often none.
  SealWrites seal_writes = SealWrites::sealed;  // clear: the URL has write_clear=1.
};

// Opens both. The store's URL may have one more parameter, `offload`: the offload's URL, in which '&', '%' and '#' are
// escaped again, as escape_url() does:
//
//   sqlite:/var/lib/pay/once.db?offload=file:/var/lib/pay/results
//   dynamodb://table?offload=s3://bucket/prefix?region=eu-central-1%26profile=pay
//
// The store's keys seal its offload too, unless the offload's URL has its own. open_store() refuses `offload`.
Backend open_backend(std::string_view url);

// Escapes a path or value for a URL: open_store("sqlite:" + escape_url(path)).
std::string escape_url(std::string_view text);

}  // namespace once
