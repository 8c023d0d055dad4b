// https://docs.aws.amazon.com/kms/latest/APIReference/API_Decrypt.html, API_GenerateDataKeyWithoutPlaintext.html
#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include <once/aws/client.hpp>
#include <once/error.hpp>
#include <once/seal_kms.hpp>

#include "aws/service_error.hpp"
#include "platform/wait.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"

namespace once {

namespace {

using Json = nlohmann::json;

constexpr const char* context_name = "once-seal-key";

// "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-..."; empty for what is no ARN.
std::string region_of(std::string_view arn) {
  if (!arn.starts_with("arn:")) return {};
  for (int colons = 0; colons < 3; ++colons) {
    const auto colon = arn.find(':');
    if (colon == std::string_view::npos) return {};
    arn.remove_prefix(colon + 1);
  }
  return std::string(arn.substr(0, arn.find(':')));
}

// Never with the answer, which may hold a key.
[[noreturn]] void fail(ErrorKind kind, const std::string& operation, const std::string& what) {
  throw Exception(kind, "KMS " + operation + ": " + what);
}

ErrorKind kind_of(std::string_view code) {
  if (code == "InvalidCiphertextException" || code == "IncorrectKeyException") return ErrorKind::corrupt;
  if (code == "KeyUnavailableException" || code == "DependencyTimeoutException") return ErrorKind::unavailable;
  return ErrorKind::misuse;
}

// A client for each region.
class Kms {
 public:
  explicit Kms(KmsOptions options) : options_(std::move(options)) {}

  Json call(const std::string& operation, const Json& request, const std::string& kms_key) {
    const auto transport = transport_for(kms_key);
    const aws::Reply reply = wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) {
      transport->call({.operation = operation, .body = request.dump(), .repeatable = true}, std::move(done));
    });
    if (reply.error) {
      // In doubt does not matter: no call changes anything.
      fail(reply.error->kind == ErrorKind::misuse ? ErrorKind::misuse : ErrorKind::unavailable, operation,
           reply.error->message);
    }
    if (reply.status != 200) {
      const aws::ServiceError error =
          aws::read_service_error({.status = reply.status, .headers = {}, .body = reply.body, .error = {}});
      const std::string code = error.code.empty() ? "HTTP status " + std::to_string(reply.status) : error.code;
      fail(kind_of(error.code), operation,
           code + (error.message.empty() ? "" : ": " + error.message) + " (" + kms_key + " at " + transport->name() +
               ")" +
               (kind_of(error.code) == ErrorKind::corrupt
                    ? ". The bytes were changed, or belong to another KMS key or to another id: the id is a part of "
                      "what KMS checks"
                    : ""));
    }
    Json answer = Json::parse(reply.body, nullptr, false);
    if (!answer.is_object()) fail(ErrorKind::unavailable, operation, "the answer is not a whole JSON object");
    return answer;
  }

 private:
  std::shared_ptr<aws::Transport> transport_for(const std::string& kms_key) {
    if (options_.transport) return options_.transport;
    const std::string region = options_.region.empty() ? region_of(kms_key) : options_.region;
    const std::lock_guard lock(mutex_);
    auto& client = clients_[region];
    if (!client) {
      client = aws::make_client({.service = "kms",
                                 .target_prefix = "TrentService",
                                 .content_type = "application/x-amz-json-1.1",
                                 .region = region,
                                 .endpoint = options_.endpoint,
                                 .profile = options_.profile,
                                 .credentials = options_.credentials,
                                 .ca_file = options_.ca_file,
                                 .timeout = options_.timeout,
                                 .total_timeout = options_.total_timeout});
    }
    return client;
  }

  const KmsOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<aws::Transport>> clients_;
};

std::string text_in(const Json& answer, const char* name) {
  const auto found = answer.find(name);
  return found != answer.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

SealKeyUnwrapper kms_unwrapper(KmsOptions options) {
  return [kms = std::make_shared<Kms>(std::move(options))](const WrappedSealKey& wrapped) {
    const Json request{{"CiphertextBlob", text::encode_base64(wrapped.bytes)},
                       {"KeyId", wrapped.with},
                       {"EncryptionContext", {{context_name, wrapped.id}}}};
    const Json answer = kms->call("Decrypt", request, wrapped.with);
    const auto bytes = text::decode_base64(text_in(answer, "Plaintext"));
    SealKey key{.id = wrapped.id, .bytes = {}};
    if (!bytes || bytes->size() != key.bytes.size()) {
      fail(ErrorKind::corrupt, "Decrypt", "what it gave is not a key of 32 bytes");
    }
    std::copy(bytes->begin(), bytes->end(), key.bytes.begin());
    return key;
  };
}

std::string new_kms_seal_key(const std::string& id, const std::string& kms_key, KmsOptions options) {
  if (!is_seal_key_id(id)) {
    throw Exception(ErrorKind::misuse,
                    "the seal key's id '" + text::printable(id) + "' is not 1 to 64 letters, digits, '-', '_' or '.'");
  }
  constexpr const char* operation = "GenerateDataKeyWithoutPlaintext";
  const Json answer =
      Kms(std::move(options))
          .call(operation, {{"KeyId", kms_key}, {"NumberOfBytes", 32}, {"EncryptionContext", {{context_name, id}}}},
                kms_key);
  const std::string blob = text_in(answer, "CiphertextBlob");
  const std::string arn = text_in(answer, "KeyId");
  if (!text::decode_base64(blob) || blob.empty() || region_of(arn).empty() ||
      arn.find_first_of(" \t\r\n") != std::string::npos) {
    fail(ErrorKind::unavailable, operation, "the answer has no encrypted key, or no ARN of the KMS key");
  }
  return id + " kms:" + blob + " " + arn + "\n";
}

}  // namespace once
