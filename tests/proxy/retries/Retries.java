// java -cp ... Retries URL CLIENT json|upload KEY: Java's own HttpClient with a loop, or OkHttp with an interceptor. It
// gives up its first try after a second. Prints the status and the body that the program gets in the end, as JSON.
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import okhttp3.Interceptor;
import okhttp3.MediaType;
import okhttp3.MultipartBody;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;
import okhttp3.Response;

class Retries {
  private static final int TRIES = 30;
  private static final Duration FIRST_TRY = Duration.ofSeconds(1);
  private static final String ORDER = "{\"cents\": 500}";

  public static void main(String[] words) throws Exception {
    boolean isJson = words[2].equals("json");
    String[] answer = words[1].equals("okhttp") ? byOkHttp(words[0], isJson, words[3]) : byHttpClient(words[0], isJson, words[3]);
    System.out.println("{\"status\": " + answer[0] + ", \"body\": \"" + answer[1].replace("\"", "\\\"") + "\"}");
  }

  // It has no forms: a program writes them itself, here with a new boundary for each try.
  private static String[] byHttpClient(String url, boolean isJson, String key) throws Exception {
    HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    for (int attempt = 1;; ++attempt) {
      String boundary = UUID.randomUUID().toString();
      String form = "--" + boundary + "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n--" + boundary
          + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"invoice.txt\"\r\nContent-Type: text/plain\r\n\r\n"
          + "an invoice\r\n--" + boundary + "--\r\n";
      HttpRequest request = HttpRequest.newBuilder(URI.create(url))
          .timeout(FIRST_TRY)
          .header("Content-Type", isJson ? "application/json" : "multipart/form-data; boundary=" + boundary)
          .header("Idempotency-Key", key)
          .POST(HttpRequest.BodyPublishers.ofString(isJson ? ORDER : form))
          .build();
      try {
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() != 409 || attempt == TRIES) {
          return new String[] {String.valueOf(response.statusCode()), response.body()};
        }
      } catch (java.net.http.HttpTimeoutException late) {
        if (attempt == TRIES) throw late;
      }
      Thread.sleep(200);
    }
  }

  private static String[] byOkHttp(String url, boolean isJson, String key) throws Exception {
    Interceptor again = chain -> {
      for (int attempt = 1;; ++attempt) {
        try {
          Response response = chain.proceed(chain.request());
          if (response.code() != 409 || attempt == TRIES) return response;
          response.close();
        } catch (IOException late) {
          if (attempt == TRIES) throw late;
        }
        try {
          Thread.sleep(200);
        } catch (InterruptedException interrupted) {
          throw new IOException(interrupted);
        }
      }
    };
    OkHttpClient client = new OkHttpClient.Builder().readTimeout(FIRST_TRY).addInterceptor(again).build();
    RequestBody body = isJson
        ? RequestBody.create(ORDER.getBytes(StandardCharsets.UTF_8), MediaType.get("application/json"))
        : new MultipartBody.Builder()
              .setType(MultipartBody.FORM)
              .addFormDataPart("purpose", "user_data")
              .addFormDataPart("file", "invoice.txt",
                  RequestBody.create("an invoice".getBytes(StandardCharsets.UTF_8), MediaType.get("text/plain")))
              .build();
    Request request = new Request.Builder().url(url).header("Idempotency-Key", key).post(body).build();
    try (Response response = client.newCall(request).execute()) {
      return new String[] {String.valueOf(response.code()), response.body().string()};
    }
  }
}
