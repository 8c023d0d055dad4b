#include "stores/open_sqlite.hpp"

#include <algorithm>
#include <limits>

namespace once::stores {

SqliteOptions sqlite_options(Url& url) {
  SqliteOptions options;
  const auto take = [&](std::string_view name, auto& option) {
    using Option = std::remove_cvref_t<decltype(option)>;
    if constexpr (std::is_same_v<Option, bool>) {
      option = url.take_flag(name).value_or(option);
    } else if constexpr (std::is_same_v<Option, Millis>) {
      option = url.take_duration(name).value_or(option);
    } else if (const auto number = url.take_number(name)) {
      // Beyond the range of the option: any value that is refused there.
      option = static_cast<Option>(std::min<std::uint64_t>(*number, std::numeric_limits<Option>::max()));
    }
  };
  options.path = url.path();
  take("create", options.create);
  take("create_directories", options.create_directories);
  take("allow_hard_links", options.allow_hard_links);
  take("allow_shared_file_system", options.allow_shared_file_system);
  take("read_only", options.read_only);
  options.allow_clear = url.take_flag("write_clear").value_or(false);
  take("busy_timeout", options.busy_timeout);
  take("work_timeout", options.work_timeout);
  take("checkpoint_pages", options.checkpoint_pages);
  take("cache_bytes", options.cache_bytes);
  take("recent_keys", options.recent_keys);
  url.refuse_rest(
      "create, create_directories, allow_hard_links, allow_shared_file_system, read_only, write_clear, busy_timeout, "
      "work_timeout, checkpoint_pages, cache_bytes, recent_keys");
  if (options.path.empty()) url.refuse("the path of the file is missing, as in sqlite:/var/lib/once/once.db");
  if (options.path.starts_with("//")) url.refuse("write one slash: sqlite:/path/to/file.db");
  return options;
}

}  // namespace once::stores
