#include "stores/open_postgresql.hpp"

#include <algorithm>
#include <limits>

namespace once::stores {

PostgresqlOptions take_postgresql(Url& url) {
  PostgresqlOptions options;
  const auto take_number = [&](std::string_view name, std::uint32_t& option) {
    // Beyond the range of the option: a value that is refused there.
    if (const auto number = url.take_number(name)) {
      option = static_cast<std::uint32_t>(std::min<std::uint64_t>(*number, std::numeric_limits<std::uint32_t>::max()));
    }
  };
  options.schema = url.take_text("schema").value_or(options.schema);
  options.operation_timeout = url.take_duration("operation_timeout").value_or(options.operation_timeout);
  options.lock_timeout = url.take_duration("lock_timeout").value_or(options.lock_timeout);
  take_number("group", options.group);
  take_number("write_connections", options.write_connections);
  take_number("side_connections", options.side_connections);
  options.allow_unsafe = url.take_flag("allow_unsafe").value_or(options.allow_unsafe);
  options.allow_clear = url.take_flag("write_clear").value_or(options.allow_clear);
  if (!url.path().starts_with("//")) {
    url.refuse("two slashes are missing, as in postgresql://user@host:5432/database");
  }
  options.url = url.take_rest();
  return options;
}

PostgresqlOptions postgresql_options(std::string_view text) {
  Url url(text);
  if (url.scheme() != "postgresql" && url.scheme() != "postgres") {
    url.refuse("it must begin with postgresql:, as in postgresql://user@host:5432/database");
  }
  for (const char* const of_any_store : {"offload", "seal", "seal_command", "read_clear", "moves_to"}) {
    url.take_text(of_any_store);
  }
  return take_postgresql(url);
}

}  // namespace once::stores
