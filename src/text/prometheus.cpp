#include "text/prometheus.hpp"

#include <charconv>

namespace once::text {

namespace {

std::string text_of(double number) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return {digits.data(), end};
}

}  // namespace

void Exposition::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  out_.append("# HELP ").append(name).append(" ").append(help);
  out_.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void Exposition::histogram(Labels labels, std::span<const double> bounds, std::span<const std::uint64_t> counts,
                           double sum) {
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    const std::string bound = i < bounds.size() ? text_of(bounds[i]) : "+Inf";
    begin_line("_bucket");
    add_labels(labels);
    add_label({"le", bound});
    end_line(below);
  }
  begin_line("_sum");
  add_labels(labels);
  end_line(sum);
  begin_line("_count");
  add_labels(labels);
  end_line(below);
}

void Exposition::begin_line(std::string_view suffix) {
  out_.append(name_).append(suffix);
  has_labels_ = false;
}

void Exposition::add_labels(Labels labels) {
  for (const Label& label : labels) add_label(label);
}

void Exposition::add_label(Label label) {
  if (label.value.empty()) return;
  out_.append(has_labels_ ? "," : "{").append(label.name).append("=\"");
  has_labels_ = true;
  for (const char c : label.value) {
    if (c == '\\' || c == '"') out_ += '\\';
    if (c == '\n') {
      out_ += "\\n";
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

void Exposition::end_line(double value) { end_line(std::string_view(text_of(value))); }

void Exposition::end_line(std::string_view value) { out_.append(has_labels_ ? "} " : " ").append(value).append("\n"); }

}  // namespace once::text
