// A store that is open, and where its large results are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <once/offload.hpp>
#include <once/record.hpp>
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

// Fetches offloaded bytes of a result into the record, and expands compressed ones. Blocks. Returns the errors: a
// record is useful without its result.
std::vector<std::string> fetch_result(const StoreAccess& access, Record& record);

}  // namespace once::operators
