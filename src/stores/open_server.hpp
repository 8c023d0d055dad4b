// The URLs of servers.
#pragma once

#include <memory>
#include <string_view>

#include <once/store.hpp>
#include <once/stores/server.hpp>

namespace once::stores {

// "once:", and "once+" before a store's own scheme.
bool is_server_url(std::string_view url) noexcept;

// The options that open_store() opens for such a URL. Throws Exception(misuse) as open_store() does.
ServerOptions server_options(std::string_view url);

std::unique_ptr<Store> open_server(std::string_view url);

}  // namespace once::stores
