#include "frontends/proxy/proxy_protocol.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <boost/crc.hpp>

namespace once::proxy {

namespace {

using HeaderKind = ProxyHeader::Kind;

constexpr std::string_view signature_1 = "PROXY ";
constexpr std::string_view signature_2("\r\n\r\n\0\r\nQUIT\n", 12);
constexpr std::size_t most_line_bytes = 107;  // Of version 1, with CR LF.
constexpr std::size_t fixed_bytes = 16;       // Of version 2, before the addresses.

std::size_t byte_at(std::string_view bytes, std::size_t at) { return static_cast<unsigned char>(bytes[at]); }
std::size_t two_bytes_at(std::string_view bytes, std::size_t at) {
  return byte_at(bytes, at) * 256 + byte_at(bytes, at + 1);
}

ProxyHeader incomplete(std::size_t more) {
  return {.kind = HeaderKind::incomplete, .more = more, .client = {}, .tls = false};
}
ProxyHeader malformed() { return {.kind = HeaderKind::malformed, .more = 0, .client = {}, .tls = false}; }

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string_view::npos &&
         std::stoul(std::string(text)) <= 65'535;
}

// "TCP4 192.0.2.1 10.0.0.1 56324 443", or UNKNOWN and anything.
ProxyHeader read_line(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::string_view rest = line;;) {
    const auto blank = rest.find(' ');
    words.push_back(rest.substr(0, blank));
    if (blank == std::string_view::npos) break;
    rest.remove_prefix(blank + 1);
  }
  ProxyHeader header{.kind = HeaderKind::complete, .more = 0, .client = {}, .tls = false};
  if (words[0] == "UNKNOWN") return header;
  if (words.size() != 5 || (words[0] != "TCP4" && words[0] != "TCP6")) return malformed();
  for (const std::size_t at : {1U, 2U}) {
    error_code error;
    const auto address = net::ip::make_address(words[at], error);
    if (error || address.is_v4() != (words[0] == "TCP4")) return malformed();
    if (at == 1) header.client = address;
  }
  return is_port(words[3]) && is_port(words[4]) ? header : malformed();
}

ProxyHeader read_version_1(std::string_view bytes) {
  const auto end = bytes.find('\n');
  if (end == std::string_view::npos) {
    if (bytes.size() >= most_line_bytes) return malformed();
    return incomplete(bytes.ends_with('\r') ? 1 : 2);
  }
  if (end + 1 != bytes.size() || bytes[end - 1] != '\r' || bytes.size() > most_line_bytes) return malformed();
  return read_line(bytes.substr(signature_1.size(), end - 1 - signature_1.size()));
}

// CRC-32C (RFC 9260, appendix A) of the header, with zeros instead of `checksum`, which is a part of it.
bool is_checksum(std::string_view checksum, std::string_view header) {
  constexpr std::size_t checksum_bytes = 4;
  if (checksum.size() != checksum_bytes) return false;
  const auto at = static_cast<std::size_t>(checksum.data() - header.data());
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> sum;
  sum.process_bytes(header.data(), at);
  sum.process_bytes("\0\0\0", checksum_bytes);
  sum.process_bytes(header.data() + at + checksum_bytes, header.size() - at - checksum_bytes);
  return sum.checksum() == two_bytes_at(checksum, 0) * 0x10000 + two_bytes_at(checksum, 2);
}

// Reads the fields after the addresses: type, length in two bytes, value. `all`: the whole header, which ends with
// `rest`. False: malformed, or a wrong checksum.
bool read_extras(std::string_view rest, std::string_view all, ProxyHeader& header) {
  constexpr std::size_t type_of_checksum = 0x03;
  constexpr std::size_t type_of_tls = 0x20;
  constexpr std::size_t client_speaks_tls = 0x01;
  while (!rest.empty()) {
    if (rest.size() < 3) return false;
    const std::size_t length = two_bytes_at(rest, 1);
    if (length > rest.size() - 3) return false;
    const std::string_view value = rest.substr(3, length);
    if (byte_at(rest, 0) == type_of_checksum && !is_checksum(value, all)) return false;
    if (byte_at(rest, 0) == type_of_tls) {
      if (value.size() < 5) return false;
      header.tls = (byte_at(value, 0) & client_speaks_tls) != 0;
    }
    rest.remove_prefix(3 + length);
  }
  return true;
}

template <class Address>
net::ip::address address_at(std::string_view bytes) {
  typename Address::bytes_type raw{};
  std::copy_n(bytes.begin(), raw.size(), raw.begin());
  return Address(raw);
}

ProxyHeader read_version_2(std::string_view bytes) {
  if (bytes.size() < fixed_bytes) return incomplete(fixed_bytes - bytes.size());
  constexpr std::size_t version_2 = 0x20;
  constexpr std::size_t local = 0;
  constexpr std::size_t proxied = 1;
  constexpr std::size_t tcp_4 = 0x11;
  constexpr std::size_t tcp_6 = 0x21;
  constexpr std::size_t bytes_4 = 12;  // Two addresses, two ports.
  constexpr std::size_t bytes_6 = 36;
  const std::size_t command = byte_at(bytes, 12) & 0x0FU;
  const std::size_t length = two_bytes_at(bytes, 14);
  const bool is_known = (byte_at(bytes, 12) & 0xF0U) == version_2 && (command == local || command == proxied);
  if (!is_known || fixed_bytes + length > most_proxy_header_bytes) return malformed();
  if (bytes.size() < fixed_bytes + length) return incomplete(fixed_bytes + length - bytes.size());
  if (bytes.size() > fixed_bytes + length) return malformed();
  ProxyHeader header{.kind = HeaderKind::complete, .more = 0, .client = {}, .tls = false};
  if (command == local) return header;
  const std::string_view rest = bytes.substr(fixed_bytes);
  std::size_t addresses = 0;
  switch (byte_at(bytes, 13)) {
    case tcp_4:
      if (length < bytes_4) return malformed();
      addresses = bytes_4;
      header.client = address_at<net::ip::address_v4>(rest);
      break;
    case tcp_6:
      if (length < bytes_6) return malformed();
      addresses = bytes_6;
      header.client = address_at<net::ip::address_v6>(rest);
      break;
    default:
      return header;  // A kind without a client's address.
  }
  return read_extras(rest.substr(addresses), bytes, header) ? header : malformed();
}

}  // namespace

ProxyHeader read_proxy_header(std::string_view bytes) {
  const std::size_t seen_1 = std::min(bytes.size(), signature_1.size());
  if (bytes.substr(0, seen_1) == signature_1.substr(0, seen_1)) {
    // The shortest one is "PROXY UNKNOWN\r\n".
    return bytes.size() < signature_2.size() ? incomplete(signature_2.size() - bytes.size()) : read_version_1(bytes);
  }
  const std::size_t seen_2 = std::min(bytes.size(), signature_2.size());
  if (bytes.substr(0, seen_2) != signature_2.substr(0, seen_2)) return malformed();
  return read_version_2(bytes);
}

}  // namespace once::proxy
