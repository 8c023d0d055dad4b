// The record that a command works on, by its key or its label.
#pragma once

#include <string>

#include "operators/store_access.hpp"
#include "output/names.hpp"
#include "settings/key_options.hpp"

namespace once::cli {

struct RecordFound {
  std::string key;    // As stored. There may be no such record.
  std::string label;  // If not empty, it was found by this label, and counts only as long as it has it.
};

// The record with this key, or else the only one with that label: in the scope, if one is given. Tells on standard
// error if it was the label, or if the store does not allow to look for it. Only --key may be a label. Blocks, and
// reads the whole store if no record has the key. Throws Exception: misuse if several records may be meant; corrupt if
// some cannot be read, so that there may be several; and the store's errors. `name`: name_of(options).
RecordFound find_record(const StoreAccess& access, const RecordName& name, const KeyOptions& options);

}  // namespace once::cli
