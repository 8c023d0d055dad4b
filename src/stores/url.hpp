// A store's URL, taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/time.hpp>

namespace once::stores {

// scheme:path?name=value&name=value. Every method throws Exception(misuse), which names the malformed part.
class Url {
 public:
  // `kind` is what messages call it: "store URL".
  explicit Url(std::string_view text, std::string_view kind = "store URL");

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const std::string& scheme() const noexcept { return scheme_; }  // Without the colon.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }      // Decoded.

  void add(std::string name, std::string value) { parameters_.emplace_back(std::move(name), std::move(value)); }

  // Each removes and returns the parameter; empty if it was not given.
  std::optional<std::string> take_text(std::string_view name);
  std::optional<bool> take_flag(std::string_view name);
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] std::optional<bool> flag(std::string_view name) const;  // Without removing it.
  std::optional<Millis> take_duration(std::string_view name);
  std::optional<std::uint64_t> take_number(std::string_view name);

  // The URL with the parameters that were not taken, for a client library that knows them. Nothing else is left.
  std::string take_rest();

  // Called after all known parameters were taken: refuses the rest. `known`: "create, busy_timeout", or empty.
  void refuse_rest(std::string_view known) const;

  // Throws Exception(misuse) that begins with the URL, without a password.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::string kind_;
  std::string text_;
  std::string scheme_;
  std::string before_parameters_;  // As it was written.
  std::string path_;
  std::vector<std::pair<std::string, std::string>> parameters_;
};

}  // namespace once::stores
