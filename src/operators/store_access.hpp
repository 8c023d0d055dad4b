// A store that is open, and where its large results are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/offload.hpp>
#include <once/record.hpp>
#include <once/result.hpp>
#include <once/store.hpp>

namespace once::operators {

struct StoreAccess {
  std::string url = {};
  std::shared_ptr<Store> store = {};
  std::shared_ptr<Offload> offload = {};  // Empty: none.
  std::string offload_name = {};          // For people. Empty: none.
  std::string offload_directory = {};     // Empty: not a directory. It may not exist yet.
  bool raw_scopes = false;  // For a Powertools dialect: its keys have the scope unescaped, also '%' and '#'.
};

// A result with its bytes, or why they cannot be had.
struct FetchedResult {
  Result result = {};
  std::optional<Error> error = {};
};
// Fetches offloaded bytes, and expands compressed ones. `offload` may be null. `done` is called once, from any thread.
void fetch_result(const std::shared_ptr<Offload>& offload, Result result, Callback<void(FetchedResult)> done);
// The same into the record. Blocks. Returns the errors: a record is useful without its result.
std::vector<std::string> fetch_result(const StoreAccess& access, Record& record);

}  // namespace once::operators
