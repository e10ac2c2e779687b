//! AWS credentials: from variables, for a pod with a service account's role (IRSA), from an agent beside the container
//! (EKS Pod Identity, ECS), or from the metadata of a virtual machine (an EC2 instance profile).

use std::time::Duration;

use serde_json::Value;

use super::{MskError, encode, http};

/// The address of ECS's agent.
const ECS_AGENT: &str = "http://169.254.170.2";
/// The address of the metadata of an EC2 instance. Outside of EC2 mostly nothing answers, so the timeout is short.
const EC2_METADATA: &str = "http://169.254.169.254";
const EC2_METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// The credentials of a user or a role.
#[derive(Debug, PartialEq)]
pub(super) struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
}

/// Finds the credentials that the environment tells of, in the order of AWS's own clients. Each call asks for new ones:
/// a token is needed every twelve minutes.
pub(super) fn find(region: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Credentials, MskError> {
    if let (Some(access_key), Some(secret_key)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        return Ok(Credentials { access_key, secret_key, session_token: variable("AWS_SESSION_TOKEN") });
    }
    if let (Some(file), Some(role)) = (variable("AWS_WEB_IDENTITY_TOKEN_FILE"), variable("AWS_ROLE_ARN")) {
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = variable("AWS_ENDPOINT_URL_STS").unwrap_or_else(|| format!("https://sts.{region}.{domain}"));
        let url = format!(
            "{endpoint}/?Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName={}&RoleArn={}\
             &WebIdentityToken={}",
            encode(&variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "watermaster".to_owned())),
            encode(&role),
            encode(read(&file)?.trim()),
        );
        let answer = http::get(&url, &[])?;
        let result = &answer["AssumeRoleWithWebIdentityResponse"]["AssumeRoleWithWebIdentityResult"]["Credentials"];
        return credentials(&endpoint, result, "SessionToken");
    }
    let relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{ECS_AGENT}{path}"));
    let Some(url) = relative.or_else(|| variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")) else {
        return of_instance(variable).map_err(|error| MskError::NoCredentials(Box::new(error)));
    };
    let token = match variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => Some(read(&file)?.trim().to_owned()),
        None => variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    };
    let header = token.as_ref().map(|token| ("Authorization", token.as_str()));
    credentials(&url, &http::get(&url, header.as_slice())?, "Token")
}

/// Asks the metadata of this EC2 instance, in version 2 of its protocol, for the credentials of its role:
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html>.
fn of_instance(variable: impl Fn(&str) -> Option<String>) -> Result<Credentials, MskError> {
    if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(MskError::MetadataDisabled);
    }
    let endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| EC2_METADATA.to_owned());
    let endpoint = endpoint.trim_end_matches('/');
    let ask = |method, url: &str, header| http::request(method, url, &[header], EC2_METADATA_TIMEOUT);
    let lifetime = ("X-aws-ec2-metadata-token-ttl-seconds", "60");
    let token = ask("PUT", &format!("{endpoint}/latest/api/token"), lifetime)?;
    let header = ("X-aws-ec2-metadata-token", token.trim());
    let roles = format!("{endpoint}/latest/meta-data/iam/security-credentials/");
    let role = ask("GET", &roles, header)?;
    let url = format!("{roles}{}", role.lines().next().unwrap_or_default().trim());
    credentials(&url, &http::parse(&url, &ask("GET", &url, header)?)?, "Token")
}

fn read(path: &str) -> Result<String, MskError> {
    std::fs::read_to_string(path).map_err(|source| MskError::File { path: path.to_owned(), source })
}

fn credentials(url: &str, answer: &Value, token: &str) -> Result<Credentials, MskError> {
    let text = |name: &str| {
        let missing = || MskError::Answer { url: url.to_owned(), problem: format!("the answer has no {name}") };
        answer[name].as_str().map(str::to_owned).ok_or_else(missing)
    };
    Ok(Credentials {
        access_key: text("AccessKeyId")?,
        secret_key: text("SecretAccessKey")?,
        session_token: Some(text(token)?),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Gives these answers, each with a status and a body, one to a request; the thread returns the requests.
    fn server(answers: &'static [(&'static str, &'static str)]) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = move |(status, body): &(&str, &str)| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut buffer = [0; 4096];
            while !request.contains("\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                request.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            write!(stream, "HTTP/1.0 {status}\r\n\r\n{body}").unwrap();
            request
        };
        (url, thread::spawn(move || answers.iter().map(answer).collect()))
    }

    fn found(variables: &[(&str, &str)]) -> Result<Credentials, MskError> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        find("eu-west-1", |name| variables.get(name).map(|value| (*value).to_owned()))
    }

    const AGENT: &str = r#"{"AccessKeyId":"id","SecretAccessKey":"key","Token":"token","Expiration":"later"}"#;

    fn of_agent() -> Credentials {
        let [access_key, secret_key, token] = ["id", "key", "token"].map(str::to_owned);
        Credentials { access_key, secret_key, session_token: Some(token) }
    }

    #[test]
    fn variables_come_first() {
        let variables = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key"), ("AWS_SESSION_TOKEN", "token")];
        assert_eq!(found(&variables).unwrap(), of_agent());
        assert_eq!(found(&variables[..2]).unwrap().session_token, None);
        let error = found(&[variables[0], ("AWS_EC2_METADATA_DISABLED", "true")]).unwrap_err().to_string();
        assert!(error.contains("there are no AWS credentials") && error.contains("METADATA_DISABLED"), "{error}");
    }

    #[test]
    fn an_agent_gives_credentials_for_the_token_of_the_pod() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "hush\n").unwrap();
        let file = file.to_str().unwrap();
        let (url, served) = server(&[("200 OK", AGENT)]);
        let url = format!("{url}/v1/credentials");
        let variables =
            [("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file)];
        assert_eq!(found(&variables).unwrap(), of_agent());
        let request = served.join().unwrap().concat();
        assert!(request.starts_with("GET /v1/credentials HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nauthorization: hush\r\n"), "{request}");
    }

    #[test]
    fn a_service_account_becomes_its_role() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "jwt").unwrap();
        let (url, served) = server(&[(
            "200 OK",
            r#"{"AssumeRoleWithWebIdentityResponse":{"AssumeRoleWithWebIdentityResult":{"Credentials":
               {"AccessKeyId":"id","SecretAccessKey":"key","SessionToken":"token"}}}}"#,
        )]);
        let variables = [
            ("AWS_ENDPOINT_URL_STS", url.as_str()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/wm"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ];
        assert_eq!(found(&variables).unwrap(), of_agent());
        let request = served.join().unwrap().concat();
        let role = "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fwm&WebIdentityToken=jwt ";
        assert!(request.contains("Action=AssumeRoleWithWebIdentity&") && request.contains(role), "{request}");
    }

    #[test]
    fn an_ec2_instance_has_the_credentials_of_its_profile() {
        let (url, served) = server(&[("200 OK", "session"), ("200 OK", "wm-role"), ("200 OK", AGENT)]);
        assert_eq!(found(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &format!("{url}/"))]).unwrap(), of_agent());
        let requests = served.join().unwrap();
        let roles = "/latest/meta-data/iam/security-credentials/";
        for (request, (line, header)) in requests.iter().zip([
            ("PUT /latest/api/token".to_owned(), "x-aws-ec2-metadata-token-ttl-seconds: 60"),
            (format!("GET {roles}"), "x-aws-ec2-metadata-token: session"),
            (format!("GET {roles}wm-role"), "x-aws-ec2-metadata-token: session"),
        ]) {
            assert!(request.starts_with(&format!("{line} HTTP/1.1\r\n")), "{request}");
            assert!(request.contains(&format!("\r\n{header}\r\n")), "{request}");
        }
        assert!(requests[0].contains("\r\ncontent-length: 0\r\n"), "{}", requests[0]);
    }

    #[test]
    fn an_instance_without_a_profile_is_named() {
        let (url, served) = server(&[("200 OK", "session"), ("404 Not Found", "")]);
        let error = found(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]).unwrap_err().to_string();
        assert!(error.starts_with("there are no AWS credentials: set AWS_ACCESS_KEY_ID"), "{error}");
        assert!(error.contains("security-credentials/: answers 404 Not Found"), "{error}");
        served.join().unwrap();
    }

    #[test]
    fn a_refusal_is_shown_without_the_query() {
        let (url, served) = server(&[("403 Forbidden", "no role")]);
        let url = format!("{url}/v1?secret=hush");
        let error = found(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]).unwrap_err().to_string();
        assert!(error.contains("403 Forbidden: no role") && !error.contains("hush"), "{error}");
        served.join().unwrap();
    }
}
