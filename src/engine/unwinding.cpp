#include <once/engine/unwinding.hpp>

#include <cxxabi.h>

#include <exception>
#include <string_view>
#include <typeinfo>

namespace once {

bool is_unwinding() noexcept {
  if (std::current_exception() == nullptr) return true;  // Not one of C++: glibc's.
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type == nullptr) return false;
  // boost/context/detail/exception.hpp and boost/coroutine/exceptions.hpp: internal types, so known by their names
  // only.
  const std::string_view name = type->name();
  return name == "N5boost7context6detail13forced_unwindE" || name == "N5boost10coroutines6detail13forced_unwindE";
}

}  // namespace once
