// Keeps the keys of an invocation's tenant apart: see once/engine/within_invocation.hpp.
#pragma once

#include <string_view>

#include <once/key.hpp>

namespace once {

// Makes the tenant a part of the key. Throws Exception(misuse) if the key names another one, or is too long with it.
void add_tenant(Key& key, std::string_view tenant);
// Whether it names one.
bool has_tenant(const Key& key);

}  // namespace once
