import java.io.IOException;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * Lets a broker check tokens of AWS IAM, as Amazon MSK does. The broker's environment holds the only user's keys and the
 * region; the user's name is the access key. Signatures:
 * https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
 */
public class AwsIamHandler implements AuthenticateCallbackHandler {
    private static final String ACCESS_KEY = System.getenv("TEST_AWS_ACCESS_KEY");
    private static final String SECRET_KEY = System.getenv("TEST_AWS_SECRET_KEY");
    private static final String REGION = System.getenv("TEST_AWS_REGION");
    private static final Duration MAX_LIFETIME = Duration.ofSeconds(900);

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

    @Override
    public void close() {}

    @Override
    public void handle(Callback[] callbacks) throws IOException, UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (!(callback instanceof OAuthBearerValidatorCallback)) {
                throw new UnsupportedCallbackException(callback);
            }
            OAuthBearerValidatorCallback validator = (OAuthBearerValidatorCallback) callback;
            try {
                validator.token(checked(validator.tokenValue()));
            } catch (GeneralSecurityException | RuntimeException error) {
                System.out.println("token refused: " + error);
                validator.error("invalid_token", null, null);
            }
        }
    }

    private static OAuthBearerToken checked(String value) throws GeneralSecurityException {
        URI url = URI.create(new String(Base64.getUrlDecoder().decode(value), StandardCharsets.UTF_8));
        // Names and values as they were encoded, in the order of the names.
        TreeMap<String, String> query = new TreeMap<>();
        for (String parameter : url.getRawQuery().split("&")) {
            String[] parts = parameter.split("=", 2);
            query.put(parts[0], parts[1]);
        }
        String signature = query.remove("X-Amz-Signature");
        query.remove("User-Agent");
        String time = query.get("X-Amz-Date");
        String scope = time.substring(0, 8) + "/" + REGION + "/kafka-cluster/aws4_request";
        require("https", url.getScheme());
        require("kafka." + REGION + ".amazonaws.com", url.getHost());
        require("kafka-cluster:Connect", decoded(query, "Action"));
        require("AWS4-HMAC-SHA256", decoded(query, "X-Amz-Algorithm"));
        require("host", decoded(query, "X-Amz-SignedHeaders"));
        require(ACCESS_KEY + "/" + scope, decoded(query, "X-Amz-Credential"));

        String canonicalQuery =
            query.entrySet().stream().map(one -> one.getKey() + "=" + one.getValue()).collect(Collectors.joining("&"));
        String request =
            "GET\n/\n" + canonicalQuery + "\nhost:" + url.getHost() + "\n\nhost\n" + hexDigest("");
        byte[] key = ("AWS4" + SECRET_KEY).getBytes(StandardCharsets.UTF_8);
        for (String part : scope.split("/")) {
            key = hmac(key, part);
        }
        String text = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + hexDigest(request);
        require(HexFormat.of().formatHex(hmac(key, text)), signature);

        LocalDateTime signed = LocalDateTime.parse(time, DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'"));
        long start = signed.toInstant(ZoneOffset.UTC).toEpochMilli();
        long lifetime = Math.min(Long.parseLong(query.get("X-Amz-Expires")) * 1000, MAX_LIFETIME.toMillis());
        if (start + lifetime <= System.currentTimeMillis()) {
            throw new IllegalArgumentException("it has expired");
        }
        return token(value, start, lifetime);
    }

    private static OAuthBearerToken token(String value, long start, long lifetime) {
        return new OAuthBearerToken() {
            @Override public String value() { return value; }
            @Override public Set<String> scope() { return Set.of(); }
            @Override public long lifetimeMs() { return start + lifetime; }
            @Override public String principalName() { return ACCESS_KEY; }
            @Override public Long startTimeMs() { return start; }
        };
    }

    private static void require(String expected, String found) {
        if (!expected.equals(found)) {
            throw new IllegalArgumentException("expected " + expected + ", found " + found);
        }
    }

    private static String decoded(Map<String, String> query, String name) {
        return URLDecoder.decode(query.get(name), StandardCharsets.UTF_8);
    }

    private static String hexDigest(String text) throws GeneralSecurityException {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        return HexFormat.of().formatHex(digest.digest(text.getBytes(StandardCharsets.UTF_8)));
    }

    private static byte[] hmac(byte[] key, String text) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }
}
