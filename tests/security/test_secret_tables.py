"""Further shapes of secrets, and texts that are none: tables of a red team. `§` stands for the secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import masked, redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_values import MASK

X = "s3cretKEY7aZ"
#: Names of variables: NAME=§.
NAMES = [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "PGPASSWORD", "MYSQL_PWD", "MYSQL_ROOT_PASSWORD", "DB_PASS", "SMTP_PASSWD",
    "CREDENTIALS", "GITHUB_PAT", "SECRET", "TOKEN", "PASSWORD", "API_KEY", "APIKEY", "ENCRYPTION_KEY", "SIGNING_KEY", "MASTER_KEY", "SALT",
    "DJANGO_SECRET_KEY", "SECRET_KEY_BASE", "LICENSE_KEY", "SSH_KEY", "DEPLOY_KEY", "AWS_SESSION_TOKEN", "GOOGLE_API_KEY", "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_KEY", "NGC_API_KEY", "NGC_CLI_API_KEY", "REDISCLI_AUTH", "RESTIC_PASSWORD", "BORG_PASSPHRASE", "VAULT_TOKEN", "TS_AUTHKEY", "SESSION_KEY",
    "JWT_SECRET", "COOKIE_SECRET", "PASSPHRASE", "WEBHOOK_SECRET", "CLIENT_SECRET", "VLLM_API_KEY", "CI_JOB_TOKEN", "COMPOSER_AUTH", "NETRC_PASSWORD",
    "SUDO_PASS", "ROOT_PW", "ADMIN_PWD", "HMAC_KEY", "AES_KEY", "FERNET_KEY", "COMET_API_KEY", "CLEARML_API_SECRET_KEY", "MLFLOW_TRACKING_PASSWORD",
    "LANGSMITH_API_KEY", "KAGGLE_KEY", "MINIO_ROOT_PASSWORD", "STORAGE_ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "PRIVATEKEY", "HFTOKEN", "ACCESSTOKEN",
    "MYTOKEN", "DBPASSWORD", "ROOTPASS", "SECRETKEY", "SSHPASS", "TOKEN_1", "API_KEY_2", "API_KEY2", "KEY1", "PASSWORD_OLD", "TOKEN_PROD", "SECRET_VALUE",
    "BEARER", "AUTH_HEADER", "BASIC_AUTH", "HTTP_AUTH", "HTTP_BASIC_AUTH", "MNEMONIC", "LOGIN_PASS", "OAUTH_TOKEN", "ID_TOKEN", "REFRESH_TOKEN", "WANDB_KEY",
    "CLIENT_KEY", "SERVICE_ACCOUNT_KEY", "HF_TOKEN_FILE_CONTENT",
]  # fmt: skip
#: Names of headers: Name: §.
HEADERS = [
    "X-Auth-Token", "X-API-Token", "x-access-token", "X-Amz-Security-Token", "X-Goog-Api-Key", "X-Vault-Token", "X-Registry-Auth", "PRIVATE-TOKEN",
    "X-Gitlab-Token", "api-key", "apikey", "Ocp-Apim-Subscription-Key", "X-CSRF-Token", "X-Hub-Signature-Secret", "X-Consul-Token", "X-Session-Token",
    "X-Secret", "x-functions-key", "X-Auth-Key", "X-Api-Secret", "X-JWT-Assertion-Token",
]  # fmt: skip
#: Parameters of a URL in an access log.
PARAMETERS = [
    "api_key", "apikey", "key", "access_token", "auth", "password", "pwd", "sig", "signature", "X-Amz-Credential", "X-Amz-Security-Token", "code",
    "client_secret", "refresh_token", "id_token", "sv=2020&sig", "X-Goog-Signature", "AWSAccessKeyId=A&Signature", "t=1&hmac", "secret", "jwt",
    "session_token", "api-key", "Key-Pair-Id=K&Policy=abc&Signature", "private_token", "job_token", "ticket", "otp", "pass", "_token", "session",

]  # fmt: skip
#: Tokens that are found by their own form. The dot is removed: what searches repositories for keys would report them.
TOKENS = [
    "hf_·AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "api_·org_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "sk-·proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34_Op-56",
    "sk-·ant-api03-Ab12Cd34Ef56Gh78Ij90-Kl12Mn34_AA", "sk-·or-v1-9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015",
    "sk-·svcacct-Ab12Cd34Ef56Gh78", "sk_·live_51Ab12Cd34Ef56Gh78", "sk_·test_51Ab12Cd34Ef56Gh78", "rk_·live_51Ab12Cd34Ef56Gh78",
    "whsec_·Ab12Cd34Ef56Gh78Ij90", "gho_·16C7e42F292c6912E7710c838347Ae178B4a", "ghs_·16C7e42F292c6912E7710c838347Ae178B4a",
    "ghr_·16C7e42F292c6912E7710c838347Ae178B4a", "ghu_·16C7e42F292c6912E7710c838347Ae178B4a", "glpat-·Ab12Cd34Ef56Gh78Ij90", "gldt-·Ab12Cd34Ef56Gh78Ij90",
    "glrt-·Ab12Cd34Ef56Gh78Ij90", "glptt-·0123456789abcdef0123456789abcdef01234567", "xoxp-·123456789012-123456789012-AbCdEf12", "xoxa-·2-AbCdEf123456",
    "xapp-·1-A01BCD2EF-1234567890-9f86d081884c7d659a2feaa0c55ad015", "xoxe.·xoxp-1-Ab12Cd34Ef56Gh78", "AIza·SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "ya29.·a0AfH6SMBx1-Ab12Cd34Ef56_Gh78", "GOCSPX-·Ab12Cd34Ef56Gh78Ij90Kl12Mn34", "1//0·gAb12Cd34Ef56Gh78Ij90Kl12Mn34-L9Ir",
    "npm_·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr78", "pypi-·AgEIcHlwaS5vcmcCJDU3Ab12Cd34Ef56", "dckr_·pat_Ab12Cd34Ef56Gh78Ij90Kl12Mn3",
    "dckr_·oat_Ab12Cd34Ef56Gh78Ij90Kl12Mn3", "nvapi-·Ab12Cd34Ef56_Gh78-Ij90Kl12Mn34",
    "SG.·Ab12Cd34Ef56Gh78Ij90Kl.Mn34Op56Qr78St90Uv12Wx34Yz56Ab78Cd90Ef12Gh3", "ASIA·IOSFODNN7EXAMPLE", "AKIA·IOSFODNN7EXAMPLE", "AROA·IOSFODNN7EXAMPLE",
    "AGE-·SECRET-KEY-1QQPQYZ0123456789ABCDEFGHJKLMNPQRSTUVWXYZ0123456789ABCDEFGH", "tskey-·auth-kAb12Cd34CNTRL-Ef56Gh78Ij90Kl12",
    "dapi·9f86d081884c7d659a2feaa0c55ad015", "hvs.·CAESIAb12Cd34Ef56Gh78Ij90Kl12Mn34", "hvb.·AAAAAQAb12Cd34Ef56Gh78", "gsk_·Ab12Cd34Ef56Gh78Ij90WGdyb3FY",
    "r8_·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr7", "pplx-·Ab12Cd34Ef56Gh78Ij90Kl12Mn34", "xai-·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56", "lin_·api_Ab12Cd34Ef56Gh78Ij90",
    "shpat_·9f86d081884c7d659a2feaa0c55ad015", "sq0csp-·Ab12Cd34Ef56Gh78Ij90", "dop_·v1_9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015",
    "key-·9f86d081884c7d659a2feaa0c55ad015", "1234·56789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw0", "MTk4·NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs",
    "eyJh·bGciOiJSU0EtT0FFUCJ9.OKOawDo13gRp2ojaHV7LFpZcgV7T6DVZKTyKOMTYUmK.48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TALvtu6UG9oMo4.XFBoMYUZodetZdvTiFvSkQ",
    "ATAT·T3xFfGF0Ab12Cd34Ef56Gh78", "figd_·Ab12Cd34Ef56Gh78Ij90", "secret_·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr78St90Uv1", "ntn_·Ab12Cd34Ef56Gh78Ij90",
    "pul-·0123456789abcdef0123456789abcdef01234567", "sntrys_·Ab12Cd34Ef56Gh78Ij90", "glsa_·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op_5a6b7c8d",
    "glc_·Ab12Cd34Ef56Gh78Ij90", "NRAK-·AB12CD34EF56GH78IJ90KL12MN3", "dp.·pt.Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56", "wandb_·v1_Ab12Cd34Ef56Gh78Ij90",
    "Ab12·Cd34Ef56Gh.atlasv1.Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr78St90Uv12Wx34Yz56", "tgp_·v1_Ab12Cd34Ef56Gh78Ij90",
    "csk-·ab12cd34ef56gh78ij90kl12mn34op56qr78st90uv12wx34", "pcsk_·5mQ2_Ab12Cd34Ef56Gh78Ij90Kl12", "lsv2_·pt_0123456789abcdef0123456789abcdef_0123456789",
    "tvly-·dev-Ab12Cd34Ef56Gh78Ij90", "e2b_·0123456789abcdef0123456789abcdef01234567", "sqp_·0123456789abcdef0123456789abcdef01234567",
    "CCIPAT_·Ab12Cd34Ef56Gh78_0123456789abcdef", "xkeysib-·0123456789abcdef0123456789abcdef-Ab12Cd34Ef56Gh78", "LTAI·Ab12Cd34Ef56Gh78Ij90",
    "dt0c01.·AB12CD34EF56GH78IJ90KL12.AB12CD34EF56GH78IJ90KL12MN34OP56", "ATCTT·3xFfGN0Ab12Cd34Ef56Gh78", "ATBB·Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56",
    "SWMTKN-·1-0123456789abcdef0123456789abcdef-ab12cd34ef56gh78", "eyJh·dXRocyI6eyJhLmlvIjp7ImF1dGgiOiJtZTpzM2NyZXRLRVk3YVoifX19",
    "newsvc_·v2_Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr78",
    "1234567890:·Bc12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr7",
    "ops_·eyJzaWduSW5BZGRyZXNzIjoibXkuMXBhc3N3b3JkLmNvbSJ9Ab12", "fw_·3ZAb12Cd34Ef56Gh78Ij90Kl",
]  # fmt: skip
#: Sentences, § is the secret.
PROSE = [
    "the password is §", "Your API key: §", "password was set to §", "using token § for login", "secret = §", "The token was '§'", "api key '§' is not valid",
    "Invalid token: §", "generated password: §", "temporary password § for root", "login with password § failed", "access key § was rejected",
    "API key `§` has expired", "Token <§> is expired", "(password: §)", "[token=§]", "{{token=§}}", "key=§", "Key: §", "Generated key: §",
    "bad credentials: §", "The passphrase for the key is §", "your secret key is: §", "password is now §", "password changed from § to other",
    "password => §", "password -> §", "password --> §", "password == §", "password:= §", "password is '§'", "password equals §", "with key § rejected",
    "token §", "secret §", "passwd §", "apikey §", "The API key you provided (§) is invalid", "Token was: §", "wrong password: §",
    "Unauthorized: § is not a valid API key", "Incorrect API key provided: §. You can find", "'§' is not a valid token", "my password, §, is", "pass: §",
    "pw: §", "pwd: §", "secret:§", "creds: me / §", "credentials: me:§", "login: me password: §", "username me, password §", "The bearer token is §",
    "session id: §", "OTP §", "auth token - §", "key — §",
]  # fmt: skip
#: Commands, configuration, structures of languages, encodings; § is the secret.
TEXTS = [
    "Cookie: theme=dark; session=§; lang=en", "cookie: sid=§", "Cookie: csrftoken=abc123; sessionid=§", "set-cookie: connect.sid=§; HttpOnly",
    "{'set-cookie': 'sid=§; Path=/'}", 'Authorization: Digest username="me", realm="a", nonce="b", uri="/x", response="§"', "Authorization: Negotiate YII§==",
    "Authorization: NTLM TlRM§==", "Authorization: key=§",
    "Authorization: §", '"Authorization": "§"', "Authorization: hmac me:§",
    'Authorization: OAuth oauth_consumer_key="k", oauth_token="§", oauth_signature="q§"', "Authorization: SharedKey acct:§=", 'Authorization:\tBearer\t§',
    "Authorization:  Bearer   §", 'Authorization: Bearer\n §', '> Authorization: Bearer §\n> Accept: */*', "* [HTTP/2] [1] [authorization: Bearer §]",
    "[('Authorization', 'Bearer §'), ('Accept', '*/*')]", "[('x-api-key', '§'), ('accept', '*/*')]", "[(b'x-api-key', b'§')]",
    '{"name": "Authorization", "value": "Bearer §"}', '{"name": "HF_TOKEN", "value": "§"}', '- name: HF_TOKEN\n  value: §\n',
    '    - name: "HF_TOKEN"\n      value: "§"\n', "Key: API_KEY, Value: §", "map[Authorization:[Bearer §] Accept:[*/*]]", "map[X-Api-Key:[§] Accept:[*/*]]",
    '{"authorization": "Bearer §", "accept": "*/*"}', 'wget --header="Authorization: Bearer §" http://a', "wget --header='X-Auth-Token: §' http://a",
    "http GET a X-API-Key:§", "Sec-WebSocket-Protocol: bearer, §", "metadata: ('authorization', 'Bearer §')",
    "POST https://hooks.slack.com/services/T00000000/B00000000/§§", "https://discord.com/api/webhooks/123456789012345678/§_§",
    "https://discordapp.com/api/webhooks/123456789012345678/§_§",
    "https://api.telegram.org/bot123456789:§/sendMessage", "https://chat.googleapis.com/v1/spaces/AAA/messages?key=§&token=§2",
    "using postgres://admin:§@db.local:1234/x", "using postgresql://admin:§@db.local:1234/x", "using mongodb+srv://admin:§@db.local:1234/x",
    "using amqp://admin:§@db.local:1234/x", "using redis://admin:§@db.local:1234/x", "using jdbc:postgresql://admin:§@db.local:1234/x",
    "postgres://u:p/§@db/x", "postgres://u:p#§@db/x", "postgres://u:p?§@db/x", "postgres://u:p:§@db/x", "postgres://u:p%40§@db/x", "postgres://u:§!$&@db/x",
    "postgres://u:pä§@db/x", "postgres://u:§@[fd00::1]:5432/x", "http://a:§@h/ and http://b:§2@h/", "user:§@db.example.com:5432/x", "//user:§@host/x",
    "mongodb://u:§@h1:27017,h2:27017/?authSource=admin", 'url: "https://me:§@h/x"', '"url": "https:\\/\\/me:§@h\\/x"', "u=https%3A%2F%2Fme%3A§%40h%2Fx",
    "https://me:§@host/x", "https://a/cb#access_token=§&token_type=bearer", "Driver={ODBC Driver 18};Server=a;Uid=sa;Pwd=§;Encrypt=yes",
    "Server=a;User Id=sa;Password=§;", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=§==;EndpointSuffix=core.windows.net",
    "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=§=", "SharedAccessSignature=sv=2020&ss=b&sig=§%3D",
    "Authorization: SharedAccessSignature sr=a&sig=§&se=1", "jdbc:mysql://db/x?user=me&password=§&useSSL=true",
    "jdbc:sqlserver://db:1433;user=sa;password=§;encrypt=true", "host=db user=me password=§ dbname=x", "host=db user=me password='ab §' dbname=x",
    "root:§@tcp(127.0.0.1:3306)/db?parseTime=true", "db.local:5432:mydb:me:§", "//registry.npmjs.org/:_authToken=§", "_auth=§", "//r.io/:_password=§",
    '[pypi]\nusername = __token__\npassword = §', 'machine a.io login me password "§"', "default login me account x password §", "https://me:§@github.com",
    'protocol=https\nhost=a\nusername=me\npassword=§', 'access_key = §\nsecret_key = §',
    '[default]\naws_access_key_id = ABCD§\naws_secret_access_key = §2\naws_session_token=§3', '[r]\ntype = s3\naccess_key_id = §\nsecret_access_key = §2',
    "pass = §", '  user:\n    token: §', 'kind: Secret\ndata:\n  password: §', '"identitytoken": "§"', '"registrytoken": "§"',
    '{\n  "auths": {\n    "a.io": {\n      "auth": "§",\n      "email": "a@b"\n    }\n  }\n}', "me:$apr1$abc$§", "root:$6$salt$§:19000:0:99999:7:::",
    "admin:$2y$10$§§§", "PrivateKey = §", "PresharedKey = §", 'psk="§"', '    ssid="a"\n    psk=§9f86d081884c7d659a2feaa0c55ad015', 'password: "§"',
    '-----BEGIN OPENSSH PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n§==\n-----END OPENSSH PRIVATE KEY-----',
    'x = "-----BEGIN OPENSSH PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\\n§==\\n-----END OPENSSH PRIVATE KEY-----\\n"',
    '-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n§==\n-----END PRIVATE KEY-----',
    'x = "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\\n§==\\n-----END PRIVATE KEY-----\\n"',
    '---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n---- END SSH2 ENCRYPTED PRIVATE KEY ----',
    '-----BEGIN PRIVATE KEY-----\\\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\\\\n-----END PRIVATE KEY-----',
    "-----BEGIN PRIVATE KEY----- MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§ § -----END PRIVATE KEY-----",
    '-----BEGIN PRIVATE KEY-----\r\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\r\n§\r\n-----END PRIVATE KEY-----\r\n',
    'key: |\n  -----BEGIN PRIVATE KEY-----\n  MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n  -----END PRIVATE KEY-----',
    "['-----BEGIN PRIVATE KEY-----', 'MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§', '-----END PRIVATE KEY-----']",
    '2026-01-01T00:00:00Z -----BEGIN PRIVATE KEY-----\n2026-01-01T00:00:00Z MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n2026-01-01T00:00:00Z §==',

    'MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7§\n§==\n-----END PRIVATE KEY-----',

    '{"kty":"RSA","n":"abc","d":"§"}', '{"kty":"oct","k":"§"}', "curl -u me:§ http://a", "curl -u 'me:§' http://a", "curl -ume:§ http://a",
    "curl --user me:§ http://a", "curl --user=me:§ http://a", "curl -U me:§ -x p http://a", "curl --proxy-user me:§ http://a", "curl -b 'session=§' http://a",
    "curl -d 'user=me&password=§' http://a", 'curl --data \'{"password":"§"}\' http://a', "curl --oauth2-bearer § http://a",
    'curl -s -H "X-Auth-Token: §" http://a', "wget --user=me --password=§ http://a", "wget --http-password=§ http://a", "sshpass -p § ssh me@h",
    "sshpass -p§ ssh me@h", "sshpass -p '§' ssh me@h", "mysql --password=§ db", "mysqldump -uroot -p§ db", "mariadb -u root -p§",
    "mysqladmin -u root -p'§' status", "redis-cli -h h -a § ping", "redis-cli --pass § ping", "docker login -u me -p § a.io",
    "docker login -u me --password § a.io", "podman login -u me -p § a.io", "docker run --env HF_TOKEN=§ img", "docker run -e 'HF_TOKEN=§' img",
    "docker run --env=HF_TOKEN=§ img", "docker build --build-arg GH_TOKEN=§ .", "huggingface-cli login --token §", "hf auth login --token=§",
    "ngc config set apikey §", "PGPASSWORD=§ psql -h db", "PGPASSWORD='§' psql", "mongosh -u me -p § --host h", "ldapsearch -D cn=a -w § -b b",
    "htpasswd -b f me §", "openssl enc -k x -pass pass:§", "openssl rsa -passin pass:§", "gpg --batch --passphrase § -d f", "unzip -P § f.zip",
    "7z x -p§ f.7z", "smbclient //h/s -U me%§", "mount -t cifs -o username=me,password=§,vers=3 //h/s /m", "ansible-playbook x.yml -e ansible_become_pass=§",
    "ansible_become_password: §", "spark-1 ansible_host=1.2.3.4 ansible_ssh_pass=§", '{"ansible_become_pass": "§"}', "echo § | sudo -S ls",
    "echo 'root:§' | chpasswd", "kubectl create secret generic a --from-literal=password=§", "kubectl --token=§ get",
    "helm install --set auth.password=§,b=1 c", "git clone https://oauth2:§@gitlab.com/a/b.git", "git -c http.extraheader='AUTHORIZATION: basic §' fetch",
    "az login --service-principal -u a -p § --tenant t", "aws configure set aws_secret_access_key §", "vault login token=§", "consul members -token=§",
    "prog -password §", "java -Djavax.net.ssl.keyStorePassword=§ -jar a", "java -Dapi.key=§",
    "vllm serve m --api_key § --port 1", "vllm serve m --api-key=§ --port 1", "vllm serve m --api-key one1 two2 § --port 1",
    "vllm serve m --api-key '§ b' --port 1", 'vllm serve m --api-key="§" --port 1', "--ssl-keyfile-password §", "--hf-token §",
    "vllm serve --hf-token § --host 0.0.0.0", 'vllm serve m \\\n  --api-key § \\\n  --port 1', 'vllm serve m --api-key \\\n  § \\\n  --port 1',
    "ray start --redis-password='§'", "ray.init(_redis_password='§')", "http://localhost:8888/?token=§", "jupyter lab --NotebookApp.token='§'",
    "jupyter lab --IdentityProvider.token=§", "root  1234  0.0  0.1 python3 -m vllm.entrypoints.openai.api_server --model m --api-key § --port 8000",
    "1234 ? Ssl 0:01 vllm serve HF_TOKEN=§ HOME=/root", '{"Cmd": ["serve", "--api-key", "§", "--port", "1"]}', '{"Cmd": ["serve", "--api-key=§"]}',
    '{\n    "Cmd": [\n        "serve",\n        "--api-key",\n        "§",\n        "--port"\n    ]\n}',
    '{\n    "Env": [\n        "A_TOKEN=§",\n        "B=1"\n    ]\n}', '{"Env": ["REDIS_URL=redis://:§@h", "B=1"]}',
    '{"Labels": {"traefik.http.middlewares.auth.basicauth.users": "me:§", "a": "b"}}',
    '{"Healthcheck": {"Test": ["CMD-SHELL", "curl -H \'Authorization: Bearer §\' localhost"]}}', '{"msg": "[\\"--api-key\\", \\"§\\", \\"--port\\"]"}',
    "args=['vllm', 'serve', '--api-key', '§', '--port', '1']", "cmd: vllm,serve,--api-key,§,--port,1", 'vllm\x00serve\x00--api-key\x00§\x00--port\x001',
    'PATH=/bin\x00HF_TOKEN=§\x00HOME=/root', "export HF_TOKEN=§", 'export HF_TOKEN="§"', 'declare -x HF_TOKEN="§"', "set HF_TOKEN=§", "setx HF_TOKEN §",
    'setx HF_TOKEN "§" /M', "set -gx HF_TOKEN §", "setenv HF_TOKEN §", '$env:HF_TOKEN = "§"', "$Env:HF_TOKEN='§'",
    "[Environment]::SetEnvironmentVariable('HF_TOKEN', '§')", "ConvertTo-SecureString '§' -AsPlainText", "+ HF_TOKEN=§", "HF_TOKEN=$'§'",
    'Environment="HF_TOKEN=§" "A=1"', "Environment=HF_TOKEN=§", "Environment=A=1 HF_TOKEN=§ B=2", "ENV HF_TOKEN §", "ENV HF_TOKEN=§", "ARG GH_TOKEN=§",
    "environ({'HF_TOKEN': '§', 'HOME': '/root'})", "os.environ['HF_TOKEN'] = '§'", 'os.environ["HF_TOKEN"]="§"', "os.environ.setdefault('HF_TOKEN', '§')",
    'os.getenv("HF_TOKEN", "§")', "process.env.HF_TOKEN = '§'",
    'A_TOKEN=\nB_TOKEN=§', "A=1,HF_TOKEN=§,B=2", "HF_TOKEN='a;§'; ls", "spring.datasource.password=§", "HF_TOKEN=ab$$§", "HF_TOKEN=ab#§", "HF_TOKEN=ab&§",
    "HF_TOKEN=ab|§", "HF_TOKEN=ab<§>", "HF_TOKEN=ab}§", "HF_TOKEN=ab]§", "HF_TOKEN=ab)§", "HF_TOKEN=ab'§", 'HF_TOKEN=ab"§', 'HF_TOKEN=ab\\§', "HF_TOKEN=ab=§",
    "HF_TOKEN=ab:§", "HF_TOKEN=пароль§", "HF_TOKEN=🔑§", "Passwort: §", "Kennwort=§", 'api_key = "§"', "api_key = '§'", 'api_key = """\n§"""',
    'auth = { user = "me", password = "§" }', 'api_keys = ["a1", "§"]', '[a]\npassword = §', "password : §", "db.password: §", "<password>§</password>",
    '<conn user="me" password="§"/>', '<add key="ApiKey" value="§"/>', "<ns:Password type='t'>§</ns:Password>", '<apiKey>\n  §\n</apiKey>',
    "<token><![CDATA[§]]></token>", "<key>ApiKey</key><string>§</string>", '<key>password</key>\n<string>§</string>',
    '<input type="password" name="password" value="§">', '<input name="csrf_token" type="hidden" value="§">', "user=me&password=§&x=1",
    "user=me&password=a+§&x=1", "user=me&pass%77ord=§&x=1", "payload=%7B%22password%22%3A+%22§%22%7D", '{"password": "§"}', '{"password":"§"}',
    '{\n  "a": {\n    "password": "§"\n  }\n}', '{"api_keys": ["a1", "§"]}', '{\n  "api_keys": [\n    "a1",\n    "§"\n  ]\n}',
    '{"auth": {"user": "me", "pass": "§"}}', '{"secrets": {"a": "§", "b": "§"}}', '{"token": {"value": "§", "ttl": 1}}',
    '{"body": "{\\"password\\": \\"§\\"}"}', '"\\"{\\\\\\"password\\\\\\": \\\\\\"§\\\\\\"}\\""', '{"password": "ab\\"§"}',
    '{"password": "ab\\\\", "token": "§"}', '{"password": "\\u00e4§"}', '{"\\u0070\\u0061\\u0073\\u0073\\u0077\\u006f\\u0072\\u0064": "§"}',
    '{"password": §}', 'b\'{"password": "§"}\'', '\'{"password": "§\\\'"}\'', '{"password": "§', '{ "password" : "§" }', '{"password":\n  "§"}',
    '{"level":"info","api_key":"§"}\n{"level":"info"}', '[["api_key", "§"]]', '{"key": "api_key", "value": "§"}', '{"value": "§", "name": "api_key"}',
    "{'password': '§'}", "{b'password': b'§'}", "('password', '§')", '{\'password\': "a\'§"}', "Config(host='a', api_key='§', port=1)",
    "Config(password=Secret(value='§'))", "Namespace(api_key='§', port=1)", "Namespace(api_key=('a1', '§'), port=1)", "api_key=SecretStr('§') port=1",
    "{'api_key': SecretStr('§')}", "api_key\n  Input should be a valid integer [type=int_parsing, input_value='§', input_type=str]",
    "OrderedDict([('password', '§')])", "tokens={'§', 'b'}", "api_keys=frozenset({'§'})", "self.api_key='§'", "client.api_key = '§'", "login(token='§')",
    "login('§', add_to_git_credential=True)", "password=r'§'", "{u'password': u'§'}", "key=b'§'",
    '  File "/a.py", line 1, in x\n    login(api_key="§")\nValueError: bad', "ValueError: invalid token: '§'", "ValueError: Invalid API key '§'",
    "    api_key = '§'\n    port = 1", "│ │ api_key = '§' │ │", "E       password = '§'", "AuthenticationError: wrong password '§' for user me",
    "{'api_key': ['a1',\n             '§'],\n 'port': 1}", "{'api_key': {'main': '§'}, 'port': 1}", "api_key=None, token='§'", "token = 'abc' '§'",
    "token: str = '§'", "token: Optional[str] = '§'",
    "(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:233] non-default args: {'model_tag': 'm', 'api_key': ['§'], 'port': 1}",
    "INFO api_server.py:1 args: Namespace(subparser='serve', api_key='§', lora_modules=None)", "EngineArgs(model='m', hf_token='§', x=1)",
    "'hf_token': '§', 'hf_overrides': {}", "{User:me Password:§ Port:1}", 'main.C{User:"me", Password:"§", Port:1}', "map[password:§ user:me]",
    'level=info password="§" msg=hi', "level=info token=§ msg=hi", 'level=error msg="login failed: password=§"', '{:password=>"§", :user=>"me"}',
    '{"password"=>"§"}', '{password: "§"}', '#<Client:0x0001 @token="§", @a=1>', "$VAR1 = { 'password' => '§' };", "my $password = '§';",
    "['password' => '§']", 'Array\n(\n    [password] => §\n)', '["password"]=>\n  string(12) "§"', "define('DB_PASSWORD', '§');",
    "{ password: '§', user: 'me' }", "const apiKey = `§`;", 'token := "§"', "password = [[§]]", 'Config { user: "me", password: "§" }', 'api_key: Some("§")',
    'token: Secret("§")', "User{name='me', password='§'}", "User[name=me, password=§]", "password=[§]", "password=<§>",
    'variable "token" {\n  default = "§"\n}', '  secret_key = "§"', "password: §", "password: '§'", "auth: {user: me, password: §}", "api_keys: [a1, §]",
    'api_keys:\n  - a1\n  - §\n', 'api_keys:\n- a1\n- §\nport: 1', 'secrets:\n  main: §\n  other: §\nport: 1', 'password: |\n  §\n',
    'password: |-\n  line\n  §\n', 'password: |2-\n    §\n', 'password: >\n  ab\n  §\nnext: 1', 'password:\n  §\n', 'password:\n  "§"\n', "password: &pw §",
    "password: !!str §", 'password: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  §', "password: § # the password", '? password\n: §', '"password": §',
    "password: horse § staple", 'command:\n  - vllm\n  - --api-key\n  - §\n  - --port\n', 'command:\n  - "--api-key"\n  - "§"\n',
    'environment:\n  - HF_TOKEN=§\n', 'environment:\n  - "HF_TOKEN=§"\n', "| api_key | § |", '| name | value |\n|---|---|\n| HF_TOKEN | § |',
    "│ api_key │ § │", "HF_TOKEN      §", "api_key       §", 'HF_TOKEN\t§', 'name,value\npassword,§', '"password","§"', "api_key ........ §",
    "api_key         : §", 'the following password:\n§', '{"api_key":\n"§"}', 'Authorization: Bearer\n§', '--api-key\n§\n--port',
    'api_key=\x1b[38;5;10m§\x1b[0m', 'api_key=\x1b]8;;http://a\x07§\x1b]8;;\x07', 'api_key=\x1b]0;t\x1b\\§', 'api_key=\x9b32m§', "api_key=^[[32m§^[[0m",
    'api_key=\\x1b[32m§\\x1b[0m', '"api_key=\\u001b[32m§\\u001b[0m"', "api_key=#033[32m§#033[0m", 'api_key=\\033[32m§', 'api_key=\x1b(B\x1b[m§',
    'pass\x1b[0mword=\x1b[1m§', '\x1b[1mAuthorization\x1b[0m: \x1b[36mBearer\x1b[0m \x1b[32m§\x1b[0m', 'pass\u200bword=§', 'password:\xa0§', "password：§",
    '\ufeffpassword=§', 'progress\rpassword=§', 'password=\x08§', 'pass\xadword=§', "api%5Fkey=§", "Authorization%3a%20bearer%20§",
    "h=Authorization%3A+Bearer+§", "Authorization%253A%2520Bearer%2520§", "%7B%22api_key%22%3A%20%22§%22%7D", "{&quot;api_key&quot;: &quot;§&quot;}",
    "api_key&#61;§", "&#34;api_key&#34;: &#34;§&#34;", "&#x27;api_key&#x27;: &#x27;§&#x27;", 'api\\x5fkey=§', 'api\\u{5f}key=§', 'api\\U0000005fkey=§',
    '{\\"api\\\\u005fkey\\": \\"§\\"}', 'api_key\\u003d§', '{\\u0022api_key\\u0022: \\u0022§\\u0022}', '\\u0027api_key\\u0027: \\u0027§\\u0027',
    '?a=1\\u0026token=§\\u0026b=2', 'Authorization\\u003a Bearer §', "\u201capi_key\u201d: \u201c§\u201d", "`api_key`: `§`", "`HF_TOKEN=§`",
    "password \u2018§\u2019",
    "user=a password=§ token=§2 secret='§3' --api-key §4", "password=§ §", 'password=§\nretry with §', "tokens: a1,§,b2", "password=§", "api_key=§",
    "api_key=§", "password: §", "password: §", "password=§", "password=http://§", "password=/a/§", "Jan  1 00:00:00 spark-1 vllm[12]: api_key=§",
    '{"MESSAGE":"api_key=§","_PID":"1"}', "2026-01-01T00:00:00.000000000Z stderr F api_key=§", '{"log": "api_key=§\\n", "stream": "stderr"}',
    '{"log": "{\\"api_key\\": \\"§\\"}\\n", "stream": "stderr"}', 'INFO:     10.0.0.1:1234 - "POST /v1/chat/completions?api_key=§ HTTP/1.1" 200 OK',
    '10.0.0.1 - me [01/Jan/2026:00:00:00 +0000] "GET /?access_token=§ HTTP/1.1" 200 1 "https://a/?token=§2" "curl"',
    "<CIMultiDictProxy('Host': 'a', 'Authorization': 'Bearer §')>", "send: b'GET / HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: Bearer §\\r\\n\\r\\n'",
    "send: b'GET / HTTP/1.1\\r\\nAuthorization: Basic §\\r\\n\\r\\n'", "send: b'GET / HTTP/1.1\\r\\nX-Api-Key: §\\r\\n\\r\\n'",
    "Headers({'authorization': 'Bearer §', 'host': 'a'})", "401 Client Error for url: https://huggingface.co/api?token=§ (Request ID: a)",
    "https://cdn-lfs.hf.co/x?Signature=§&Key-Pair-Id=K3", "https://a.blob.core.windows.net/c/f?sv=2020-08-04&se=2026&sr=b&sp=r&sig=§%3D",
    "https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4&X-Goog-Credential=a%40b&X-Goog-Signature=§9f86d081884c7d659a2feaa0c55ad015",
    "headers:\n  - 'Authorization: Bearer §'", "Authorization Bearer §", "Authorization=Bearer §", 'authorization="Bearer §"',
    '\\"Authorization\\": \\"Bearer §\\"', "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20§", "OTEL_EXPORTER_OTLP_HEADERS=api-key=§", "BEARER §",
    "Authorization: Bearer §", "bearer '§'", "Authorization: Token token=§", "SNOWFLAKE_PASSWORD=§", "Enter passphrase for key '/root/.ssh/id': §",
    "[sudo] password for me: §", "Password: §", "pre-shared key: §", "ipmitool -H h -U me -P § chassis", "nmcli dev wifi connect a password §",
    '[wifi-security]\npsk=§', 'chpasswd:\n  list: |\n    root:§\n', "chpasswd: {users: [{name: root, password: §}]}", "node.session.auth.password = §",
    "password_pbkdf2 root grub.pbkdf2.sha512.10000.§", '  + password = "§" -> null', '  ~ token = "§" -> "§2"', '-password: §\n+password: §2',
    '+  "api_key": "§",', "/etc/a.conf:12:password=§", "a.yml-12-    password: §", "ALTER USER me WITH PASSWORD '§'", "CREATE USER me IDENTIFIED BY '§'",
    "UPDATE u SET password='§' WHERE id=1", "AUTH §", "requirepass §", "masterauth §", "PASS §", "PASS :§", "mosquitto_pub -u me -P §",
    "svn co --username me --password § u", "RSYNC_PASSWORD=§ rsync a b", "SOPS_AGE_KEY=AGE-SECRET-KEY-1§", '<<: *x\napi_key: *y §',
    '{"AccessKeyId": "AB12", "SecretAccessKey": "§", "SessionToken": "§2"}', "<SecretAccessKey>§</SecretAccessKey>",
    '{"access_token": "§", "refresh_token": "§2", "expires_in": 1}', "id_token=§&state=1", "SAMLResponse=§", "csrfmiddlewaretoken=§", "PHPSESSID=§",
    "JSESSIONID=§", "apiKey=§", "dbPassword: '§'", "hfToken: §", "secretAccessKey = §", "ApiKey: §", "api-key: §", "api.key: §", "API Key: §",
    "Access Key ID: §", "Secret Key = §", "config:api:key=§", "api_keys[0]=§", "config['api_key']['value'] = '§'", "api_keys.0=§", "passwords: §",
    "password1=§", "PASSWORD: §",
    "curl -sSfu me:§ http://a", "curl -skume:§ http://a", "['curl', '-u', 'me:§', 'http://a']", "curl --cert a.pem:§ https://a", "etcdctl --user root:§ get /",
    "ctr images pull --user me:§ a.io/b", "http://u:ab/@§@proxy:3128",
    "http://u:ab%2F%40§@proxy:3128", 'sudo -S apt update <<< "§"', "sudo -S true <<EOF\n§\nEOF",
    "chpasswd <<< 'root:§'", "chpasswd <<EOF\nroot:a\nme:§\nEOF", "echo § | cryptsetup luksOpen /dev/a b", "echo '§' | passwd --stdin me",
    "echo §|sudo -kS true",
    "echo § | sudo --stdin ls", "echo '§' | su -c reboot", "echo § | kinit me", "(echo §; echo §) | smbpasswd -s -a me", "sqlcmd -U sa -P § -Q x",
    "cqlsh -u c -p § h",
    "racadm -r b -u root -p § x", "htpasswd -nb me § > f", "openssl passwd -6 §", "rabbitmqctl add_user me §", "rabbitmqctl change_password me §",
    "ipmitool user set password 2 §", "wpa_passphrase Home §", 'wpa_passphrase Home "a §"', "mc alias set lab http://a:9000 me §",
    "nmcli con modify Home wifi-sec.psk §", "nmcli dev wifi connect Home password '§' ifname wlan0", "keytool -list -storepass §",
    "ansible-vault encrypt_string '§' --name x", "vault login §", "bindpw §", 'masterauth "a §"', "export SSHPASS='§'", "PGPASS: §", "user=me pass=§ host=h",
    '{"username": "me", "pass": "§"}', "[a]\nuser=me\npass=§", '{"key": "API_KEY", "val": "§"}',
    "https://a.office.com/webhook/12345678-a@b/IncomingWebhook/0123456789abcdef§/c", "api_key = load('§')", "token = Ab12cD34(§)",
]  # fmt: skip
#: Texts that the gate or the user needs as they are.
HARMLESS = [
    "max_tokens=4096", "max_tokens: 4096", '"max_tokens": 4096', "max_completion_tokens=16", "min_tokens=0, max_tokens=16", "num_speculative_tokens=5",
    "'num_speculative_tokens': 5", '{"method": "mtp", "num_speculative_tokens": 3}', "Avg generation throughput: 33.1 tokens/s", "31.4 tokens/s",
    "GPU KV cache size: 4,194,304 tokens", "Maximum concurrency for 1,048,576 tokens per request: 4.00x", "tokenizer_mode=auto", "tokenizer='/model'",
    "tokenizer_revision=None", "--tokenizer /model", "pad_token_id=0", "eos_token_id: [1, 106]", "bos_token='<bos>'", "'eos_token': '</s>'",
    "stop_token_ids=[1, 2]", "image_token_index=5", "mask_token_id: 126336", "special_tokens_map.json", "added_tokens.json",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "vllm/vllm-openai@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "commit 0123456789abcdef0123456789abcdef01234567",
    "revision=0123456789abcdef0123456789abcdef01234567", "release 20261124T220021Z-9f86d081", "GID 3: 0000:0000:0000:0000:0000:ffff:c0a8:c80b",
    "link/ether 4c:bb:47:01:02:03 brd ff:ff:ff:ff:ff:ff", "fe80::4ebb:47ff:fe01:203/64", "http://192.168.200.11:8000/v1/models",
    "https://huggingface.co/nvidia/Model", "https://huggingface.co/docs/hub/security-tokens", "The Authorization header is missing",
    "Authorization is required for this endpoint", "No authorization token was sent", "set Authorization to use the API", "kv_cache_key=block",
    "cache_key: 12", "keys: 5", "keys=5", "5 keys", "key 5 of 10", 'Missing key(s) in state_dict: "layers.0.w"',
    "Unexpected key(s) in state_dict: layers.0.w", "KeyError: 'api'", "KeyError: 'token'", "missing keys: layers.0.w, layers.1.w",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJq3Y8 root@spark-1", "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7 me@h",
    "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDRczYzFZsTMeKLYeQ", "ED25519 key fingerprint is SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDRczYzFZsTMeKLYeQ.",
    "Host key verification failed.", "Host key for 192.168.1.5 has changed", "256 SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDRczYzFZsTMeKLYeQ root@spark-1 (ED25519)",
    "/opt/gb10-cluster/vllm_tp2/x/api_key", "api_key_file: /opt/gb10-cluster/vllm_tp2/x/api_key", "The API key is in /opt/gb10-cluster/vllm_tp2/x/api_key",
    "key file /etc/gb10-cluster/api_key", "private_key_file=/root/.ssh/id_ed25519", "--ssl-keyfile /etc/ssl/k.pem", "ssl_keyfile=None, ssl_certfile=None",
    "IdentityFile /root/.ssh/id_ed25519", "HF_TOKEN_PATH=/root/.cache/huggingface/token", "secrets.env", "/etc/gb10-cluster/secrets.env 0600",
    "secret_env: HF_TOKEN", "vllm_tp2_secret_env: {}", "no secret is configured", "the secret file is readable by others", "The secrets are in secrets.env",
    "Permission denied (publickey,password).", "password authentication is disabled", "PasswordAuthentication no", "PasswordAuthentication yes",
    "PubkeyAuthentication yes", "PermitRootLogin prohibit-password", "sudo: a password is required", "sudo: no password was provided",
    "[sudo] password for me:", "Missing sudo password", "Incorrect sudo password", "Invalid/incorrect password: Permission denied",
    "Timed out waiting for become success or become password prompt", "Token indices sequence length is longer than the specified maximum sequence length",
    "The tokenizer class you load from this checkpoint is not the same type", "token_type_ids", "next token prediction", "per token latency 12 ms",
    "time per output token: 31.2 ms", "Mean TTFT (ms): 120.1", "prefill tokens: 8192", "tokens: 8192", "total_tokens: 4004094", "total tokens 4004094",
    "prompt tokens = 12", "input_tokens=12 output_tokens=3", "generated 42 tokens in 1.2 s", 'vllm:prompt_tokens_total{engine="0",model_name="m"} 1234.0',
    'vllm:generation_tokens_total{model_name="m"} 12.0', 'vllm:iteration_tokens_total_bucket{le="1.0"} 3', "vllm:time_per_output_token_seconds_sum 1.5",
    "vllm:spec_decode_num_accepted_tokens_total 5", "tokens_per_second=33.1", "max-num-batched-tokens: 8192", "long_prefill_token_threshold=0",
    "--max-num-batched-tokens=8192", "reasoning_parser=deepseek_r1, tool_call_parser=hermes", "prefix_caching_hash_algo=sha256", "author=me", "authors: a, b",
    "authoritative: yes", "authentication failed", "auth: none", "auth_enabled: false", "keyboard: us", "keyword=1", "monkey: see", "turkey=1", "hockey: 3",
    "NCCL_IB_PKEY=0", "pkey: 0xffff", "pkey_index=0", "PKey 0x7fff", "TOKENIZERS_PARALLELISM=false", "VLLM_TOKENIZER_MODE=auto", "passing: 5", "passed=17",
    "pass: 3 fail: 0", "PASS test_a", "bypass=1", "compass: n", "passthrough=1", "password_file: /etc/x", "secretary: me", "key_cache shape: [1, 2]",
    "KeyboardInterrupt", "key_value_heads=8", "num_key_value_heads: 8", "num_kv_heads=8", "query_key_value", "k_proj key_proj value_proj",
    "attention key dim 128", "key=value", "keys() returned 3", "foreign key constraint", "primary key id", "sort key: name", "primary_key: id",
    "public_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJq3Y8", "pubkey=AAAAC3", "sk-something/model-name is not a model", "deepseek-ai/DeepSeek-V3",
    "nvidia/Llama-3.3-70B-Instruct-NVFP4", "risk-free", "task-queue", "disk-0123456789abcdef", "mask-rcnn-r50", "desk-1", "npm_config_cache", "hf_transfer",
    "hf_overrides={}", "hf_config", "HF_HUB_OFFLINE=1", "HF_HUB_ENABLE_HF_TRANSFER=1", "HF_ENDPOINT=https://hf-mirror.com", "AIxxx", "signature: (x, y)",
    "function signature mismatch", "got an unexpected keyword argument 'token'", "missing 1 required positional argument: 'key'",
    "TypeError: login() got an unexpected keyword argument 'api_key'", "unrecognized arguments: --api-keyy",
    "error: argument --api-key: expected at least one argument", "usage: vllm serve [--api-key API_KEY [API_KEY ...]] [--port PORT]", "--api-key API_KEY",
    "set VLLM_API_KEY or --api-key", "pass --api-key to protect it", "vllm_tp2_api_open: true", "The API is open: no key is configured",
    "HTTP 401: the key is not accepted", "the key is in secrets.env on spark-1", "the key is not readable", "the token is missing", "the password is wrong",
    "The token has expired", "token expired", "key is None", "key is missing", "token=None", "password=null", "api_key: null", "api_key=''", 'api_key=""',
    "password: ", "secret: false", "api_key: true", "token: false", "use_auth_token=False", "use_auth_token=True", "trust_remote_code=True",
    "root:x:0:0:root:/root:/bin/bash", "me@spark-1:~$", "git@github.com:a/b.git", "ssh root@192.168.1.5", "root@spark-1", "user@host.example",
    "mail: me@example.org", "http://[fd00::1]:8000/", "https://a/b@c", "https://pypi.org/project/x@1.0", "tcp://192.168.200.11:29500",
    "tcp://[fd00::1]:29500", "ipc:///tmp/3f2b8c1e-7d4a-4b6f-9e21-5c0d7a8b9f10", "registry.example.com:5000/a/b:tag@sha256:9f86d081", "cookie jar",
    "session started", "session 12 closed", "session_id: 12", "Started Session 5 of User root.", "ssh session closed for user root", "New session c1 of user",
    "signal=9", "sig=11", "code=exited, status=1/FAILURE", "exit code=1", "code: 137", "error code: 12", "errno: 111", "otp=1", "pin_memory=True", "pin: 3",
    "is_pin_memory_available", "cuda pinned memory", "salt: none", "seed=0", "seed: 42", "--seed 42", "credential helper not found",
    "credentials not found in native keychain", "error getting credentials - err: exit status 1", "license: apache-2.0",
    "digest: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "Basic checks passed", "basic attention is used", "bearer of news",
    "Digest: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "Status: Downloaded newer image for vllm/vllm-openai:v0.11.0",
    "mysql -u root db", "docker login succeeded", "echo a | tee b", "mkdir -p /a/b", "ps -p 123", "cp -p a b", "ssh -p 22 h", "nvidia-smi -pm 1",
    "docker run -p 8000:8000 img", "curl -u is missing", "sort -u a:b", "apt-get install -y python3", "tar -a b", "ls -a /root", "id -u root", "date -u +%s",
    "docker run -u 1000:1000 img", "user=1000:1000", "--user 1000:1000", "user: 1000:1000", "uid=0(root) gid=0(root)", "PCI 000f:01:00.0", "0000:01:00.1",
    "01:00.0 Ethernet controller", "2026-01-01T00:00:00.123456789Z", "INFO 01-01 00:00:00 [utils.py:233] ok", "NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE",
    "NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x9f86d081884c7d65 - Init COMPLETE", "GPU-3f2b8c1e-7d4a-4b6f-9e21-5c0d7a8b9f10",
    "MemTotal: 125513532 kB", "engine_id=3f2b8c1e-7d4a-4b6f-9e21-5c0d7a8b9f10", "request chatcmpl-9f86d081884c7d659a2feaa0c55ad015 finished",
    "cmpl-9f86d081884c7d659a2feaa0c55ad015-0", "instance_id='vllm-9f86d'", "compile cache /root/.cache/vllm/torch_compile_cache/9f86d08188/rank_0_0",
    "hash value: 9f86d081884c7d65", "AOT key 9f86d081884c7d659a2feaa0c55ad015", "fingerprint: 9f86d081884c7d65", "content-type: application/json",
    "x-request-id: 9f86d081", "Content-Length: 12", 'etag: "9f86d081"', "host_key_checking = False", "ansible_ssh_common_args: -o StrictHostKeyChecking=yes",
    "become_method: sudo", "loop_control: {label: a}", "no_log: true",
    "the output has been hidden due to the fact that 'no_log: true' was specified for this result", "secure_boot: disabled", "TLS key exchange: X25519",
    "KexAlgorithms curve25519-sha256", "random number generator seeded", "RoCE priority key", "tokens=8192 blocks=512", "block_size=256",
    "kv tokens short of the estimate", "Estimated KV pool: 4,004,094 tokens", "token budget 8192", "token 5", "a token of 4 bytes",
    "draft token acceptance rate: 71.2%", "Per-position acceptance rate: 0.9, 0.8", "Accepted: 12 tokens, Drafted: 30 tokens", "first token after 1.2 s",
    "tokens processed: 120000", "key: value pairs", "press any key to continue", "Key bindings", "the key of the API: generated",
    "password hash algorithm sha512", "passwordless sudo is configured", "NOPASSWD: ALL", "root ALL=(ALL) NOPASSWD: /usr/bin/x", "authorized_keys: 3 lines",
    "/root/.ssh/authorized_keys", "ssh_authorized_keys: []", "AuthorizedKeysFile none", "apt-key is deprecated", "gpg key /usr/share/keyrings/docker.gpg",
    "[signed-by=/usr/share/keyrings/docker.gpg]", "NO_PUBKEY 7EA0A9C3F273FCD8", "Key-Type: default", "vllm_tp2_api_key_file", "gb10_secret_env",
    "task path: /x/roles/api_key/tasks/main.yml:12", "TASK [vllm_tp2 : Read the API key] ***", "ok: [spark-1] => (item=HF_TOKEN)", "HF_TOKEN is not set",
    "HF_TOKEN: not set", "VLLM_API_KEY is set in the open environment", "Remove HF_TOKEN from vllm_tp2_extra_env and put it into vllm_tp2_secret_env",
    "secrets: 2 files", "secrets: 3", "passwords: 0", "credentials: 2 found", "cookies: 3", '{"prompt_tokens_details": {"cached_tokens": 128}}',
    "'completion_tokens_details': {'reasoning_tokens': 12}", '    api_key = os.environ.get("VLLM_API_KEY")', '    token = os.environ["HF_TOKEN"]',
    "    token = self.tokenizer.decode(ids)", "    token = get_token()", "    token = await self.queue.get()", "    secret = self.read_secret(path)",
    '    hf_token = kwargs.pop("token", None)', "    password = module.params['password']", "    token = self._encode(self.name, key=password)",
    "mysql -p -h db app", "mysql -p -u root db", "mysql -P 3306 -u root db", "redis-cli -h h -p 6379 ping", "unzip -p model.zip config.json",
    "openssl s_client -port 443", "tests/hooks/test_forward_hooks_v2.py:12", "/app/webhook/v1beta1/validation_of_models.go", "sshpass -e ssh h",
    "sshpass: invalid option", "vault login failed", "vault login -method=ldap", "echo root | getent passwd", "echo 1 | sudo tee /proc/sys/vm/drop_caches",
    "cat <<EOF\nroot:x\nEOF", "sudo tee /etc/a <<EOF\na b\nEOF", "nmcli con up Home", "the user set password aging", "openssl passwd -6", "user: me passed: 3",
    "integrity sha256-uNiVztksCsDhcc0u9e8BgrJXVGDRczYzFZsTMeKLYeQ", "kernel_0123456789abcdef0123456789abcdef", "jina_embeddings_v3", "gemma_e2b_instruct_v1",
    "undefined symbol: _ZN5torch3jit14InterpreterStateImpl7runImplERSt6vectorIN3c106IValueESaIS4_EE",
    "undefined symbol: _ZNK3c104cuda4impl13CUDAGuardImpl9getDeviceERKN2at6TensorES2Ev",
    "triton_poi_fused_add_native_layer_norm_0d1d2d3de", "NVIDIA_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "curl -X PUT http://a:80/b", "curl --url http://a:80",
    "max_num_batched_tokens=8192, num_speculative_tokens=5", "pad_token_id=0 eos_token='</s>'", "GPU KV cache size: 1,990,142 tokens",
    "--tokenizer-mode=deepseek_v4 --tool-call-parser x", "hf_overrides={}, hf_config_path=None, hf_token=None", "'api_key': None, 'port': 8000",
    "prompt_tokens: 12, completion_tokens: 3", "Avg prompt throughput: 1.2 tokens/s, Running: 1 reqs", "author: someone else", "KeyError: 'layers.0.w'",
    "Authentication is not enabled", "bearer token required", "the key is missing", "authentication: password is required", "PWD=/root/x",
    "HF_TOKEN_PATH=/root/.cache/token", "--max-num-batched-tokens 8192", "ssh_host_key_path: /etc/ssh", "task-offloading sk-learn disk-usage",
    "http://192.168.200.11:8000/v1", "Maximum concurrency for 4,096 tokens per request: 1,024.00x", "tokens: [1, 2, 3]", "api_key=[]",
    "skip_tokenizer_init=False",
    "env names: HF_TOKEN, VLLM_API_KEY", "(HF_TOKEN, WANDB_API_KEY)", "['HF_TOKEN', 'WANDB_API_KEY']", "secret_env_names=['HF_TOKEN']",
]  # fmt: skip


def masks(text: str, secret: str) -> bool:
    """Report whether the secret is masked, once. The tables are read in loops: a test for each of 1,300 texts costs more than the texts."""
    out = redact(text)
    return secret not in out and MASK in out and redact(out) == out


def test_a_secret_in_this_text_is_masked() -> None:
    texts = [*PROSE, *TEXTS, *(f"{name}: §" for name in HEADERS), *(f"{name}=§" for name in NAMES)]
    assert [text for text in texts if not masks(text.replace("§", X), X)] == []


@pytest.mark.parametrize(
    "text",
    [
        "X-Registry-Auth: §", "X-Auth-Token: §", "ansible_ssh_pass=§", "psk=§", "('x-api-key', '§')", '["password", "§"]', "Invalid API key '§'",
        "setx HF_TOKEN §", "ENV HF_TOKEN §", "aws configure set aws_secret_access_key §", "--pass §", "ID_TOKEN=§", "openssl rsa -passin pass:§",
        "{'api_key': {'main': '§'}}",
        "api_keys:\n- §\n", "password: &a §", "<password>§</password>", '{"name": "HF_TOKEN", "value": "§"}', "PGPASSWORD=§", "curl -u me:§ http://a",
        "SSHPASS=§",
        "sudo -S ls <<< '§'", "echo § | passwd --stdin me", "nmcli dev wifi connect a password §", "requirepass §", "user=me pass=§", "SSHPASS='§'",
        "%7B%22api_key%22%3A%20%22§%22%7D", "&quot;api_key&quot;: &quot;§&quot;", "password -> §", "sshpass -p § ssh h", "password=SecretStr('§')",
    ],
)  # fmt: skip
def test_a_secret_that_is_a_word_is_masked(text: str) -> None:
    assert masks(text.replace("§", "horsebattery"), "horsebattery")


@pytest.mark.parametrize("value", [X, "horsebattery", "pässwörd"])
def test_a_secret_in_an_access_log_is_masked(value: str) -> None:
    start = 'INFO: 127.0.0.1:4000 - "GET /v1/models?a=1&'
    shown = {name: redact(f'{start}{name}={value} HTTP/1.1" 200 OK') for name in PARAMETERS}
    assert {name: out for name, out in shown.items() if value in out or not out.startswith(start)} == {}


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_token_is_masked_by_its_form(quote: str) -> None:
    values = [token.replace("·", "") for token in TOKENS]
    assert [value for value in values if not masks(f"got 401 with {quote}{value}{quote} from a", value)] == []


def test_a_harmless_text_stays() -> None:
    assert {text: out for text in HARMLESS if (out := redact(text)) != text} == {}


@pytest.mark.parametrize(
    "config",
    [
        {"Env": [{"name": "HF_TOKEN", "value": X}]},
        {"Cmd": ["redis-cli", "-a", X, "ping"]},
        {"Cmd": ["curl", "-u", f"me:{X}", "http://a"]},
        {"Entrypoint": ["prog", "-password", X]},
        {"Healthcheck": {"Test": ["CMD-SHELL", f"curl -H 'Authorization: Bearer {X}' localhost"]}},
        {"auth": {"password": {"main": X}}},
        {"HostConfig": {"LogConfig": {"Config": {"splunk-token": X}}}},
    ],
)
def test_a_structure_is_masked(config: Any) -> None:
    assert X not in json.dumps(masked(config))


@pytest.mark.parametrize("text", ["a line of a log that is as long as the terminal is wide, with a kn0wn-\n  value-of-24-letters in it"])
def test_a_known_value_is_masked_across_the_end_of_a_line(text: str) -> None:
    assert "letters" not in redact(text, ["kn0wn-value-of-24-letters"])


@pytest.mark.parametrize("written", ["p&amp;q&quot;r-12", "70267122722d3132"])
def test_a_known_value_is_masked_as_html_and_hex(written: str) -> None:
    assert redact(f"it holds {written} there", ['p&q"r-12']) == f"it holds {MASK} there"
