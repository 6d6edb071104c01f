# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Mask secrets in what leaves a node: known values, values of names that hold secrets, and shapes. Pure, in linear time: repetitions have limits."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, Callable
from urllib.parse import quote, quote_plus

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable

MASK, SHORTEST, VALUES = "********", 4, 50  # SHORTEST: characters of a known value; VALUES: so many are masked without their names too
#: `NAME = pattern` is a part, and <NAME> in a later row stands for it. `texts :: pattern` is a shape: one of the texts is near it in lower case (*: none), and
#: its last group, or all of it, is the secret. A group `name` decides about that. A line that begins with blanks continues the row before, and ;; ends one.
_TABLE = r"""
# Names, such as _hf_token_: that hold a secret, or do if the value looks generated; counts of tokens; public keys; the place or kind of a secret.
TOKENS = _tokens?_ ;; PASSES = _(?:sshpass|rootpass|dbpass|pgpass|storepass|keypass|requirepass|masterauth|bindpw|rootpw)_$ ;; TOKEN = _token_$
COUNTS = _(?:max|min|num|number|batched|speculative|tokenizers?|ids?|pad|bos|eos|unk|sep|cls|mask|image|audio|video|draft|per|count|limit|budget|special|think
  |stop|start|end|next|disable|implicit|spec|block|chunk|details)_ ;; STRONG = _(?:api|access|private|secret|auth|signing|account|master|encryption|shared
  |subscription|license|storage|session)_keys?_$|(?<!_no)passwd_|[a-z]token_|(?:secret|password|passphrase|credential|(?:api|secret|access)key)s?_|_(?:passcode
  |creds|authorization|bearer|cookies?|jwt|(?:private|auth|preshared)key|passwort|kennwort|mnemonic|basicauth)_|._(?:pass|pwd|pw|pat)_$|_psk_$|_id_token_$
WEAK = _(?:keys?|salt|session|(?:php|j)?sess(?:ion)?id|sid|otp|sig|signature|hmac|ticket|(?:saml)?response|code|account|header)_$|^_(?:tokens|auth|pass|pwd|pw
  |pat)_$|<PASSES> ;; OPEN = _(?:public|pub|authorized|host|known|cache|kv|primary|foreign|sort|missing|unexpected|query|value)_ ;; KEY = _(?:keys?|auth)_$
ABOUT = ^_?$|_(?:path|file|dir|folder|names?|type|len|length|ttl|timeout|seconds|url|uri|endpoint|format|mode|enabled|required|count|stdin|parser|ref)_$
# Values: a number, a switch or a variable; a word that no person wrote, its changes; a variable's name; a line of a program; words of sentences.
PLAIN = (?i)(?:[-+]?\d[\d.,_\s]*(?:e[-+]?\d+)?[kmg]?|None|null|true|false|auto|\[[\d\s,]*\])?|(?-i:\$\{?[A-Z_]+\}?)|\{\{ ?[\w.]+ ?\}\}
GENERATED = (?<![\w/.-])(?=[\w+~-]{0,60}\d)(?=[\w+~-]{0,60}[A-Za-z])(?!\d{1,12}(?:[a-z]{1,3}|[kKMGTP]i?B)?(?![\w-]))[\w+/~.-]{6,4000}
CHANGE = [A-Za-z](?=\d)|\d(?=[A-Za-z]) ;; VARIABLE = [A-Z]+(?:_[A-Z]+)+|[a-z0-9]+(?:_[a-z0-9]+){2,}
CODE = (?:await )?[A-Za-z_][\w.]{0,80}(?:\(\))?[\w.]{0,80}[(\[][^\n]{0,200}[)\]][\w.()]{0,80}
SENTENCE = (?i:a|an|the|missing|not|no|invalid|required|empty|set|unset|wrong|incorrect|expired|used|given|provided|for|of|to|in|and|or|is|was|be|been|needed
  |optional|valid|present|absent|masked|redacted|refused|unknown|expected|permission|must|cannot|has|are|sent)(?![^\s.,:])
# What is not shown; characters as URLs, JSON, Python and HTML write them, also several times over, or that look like another; a wrapped line.
HIDDEN = (?:\x1b\[|\x9b)[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\t\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[@-Z\\^_=>]|[\x08]|(?:\\{1,4}(?:x1[bB]
  |u001[bB]|033|e)|\^\[|#033)\[[0-9;]{0,40}m|[\u200b-\u200d\u2060\ufeff\u00ad]{1,4096}
ENCODED = %(?:25){0,4}([2-7][0-9a-fA-F])|\\{1,16}(?:u00|x|U000000|u\{)([2-7][0-9a-fA-F])\}?|&(?:amp;){0,3}#(?:x([2-7][0-9a-fA-F])|0?(3[2-9]|[4-9]\d|1[01]\d
  |12[0-6]));|&(?:amp;){0,3}(quot|apos|amp|lt|gt);|([\u201c\u201d\u2018\u2019：＝\u00a0\0]) ;; WRAP = \n[ \t]{0,40}(?:[|│>] )?
# What reads a password from its input; a word; values of an argument; what is around an argument of a command; begins of keys of services.
READS = (?:--password-stdin|\bsudo (?:-\S{1,20} ){0,4}(?:-\w{0,4}S|--stdin)\b|(?<![/\w])(?<!getent )\w{0,3}passwd\b|\bcryptsetup\b|\bkinit\b|\bsu -
  |--passphrase-fd\b|--with-token\b) ;; WORD = (?:"([^"\n]{1,200})|'([^'\n]{1,200})|([^\s"'-][^\s"']{0,200})) ;; ARGUMENT = (?:\\{1,7}"([^"\\\n]{1,2000})|"
  ((?:\\.|[^"\\\n]){1,2000})|'((?:\\.|[^'\\\n]){1,2000})|([^\s"',\]]{1,2000}(?:(?:[ \t]{1,8}|\s{0,8}\n\s{0,40}- {1,8})(?![|>&;<-])[^\s"',\]]{1,2000}){0,7}))
GIVES = \b(?:[^\n|;]{0,200}?[\s"'])?(?<=[\s"']) ;; GIVEN = [ ,"'=\t]{0,4}(?!-\w(?![^\s"']))((?:pass:)?[^\s"']{2,200})
BEGIN = (?:hf_|api_org_|sk[-_]|[rp]k_(?:live|test)_|whsec_|gh[pousr]_|github_pat_|gl[a-z]{1,5}[-_]|nvapi-|xox[a-z][.-]|xapp-|npm_|pypi-|dckr_[a-z]{3}_|ya29\.
  |GOCSPX-|1//|SG\.|tskey-|dapi|hv[sbr]\.|gsk_|r8_|pplx-|xai-|lin_api_|shp[a-z]{2}_|sq0[a-z]{3}-|do[opr]_v1_|key-(?=[0-9a-f]{32})|ATATT|figd_|ntn_|pul-|secret_
  (?=[A-Za-z0-9]{32})|sntry[su]_|NRAK-|dp\.[a-z]{2,5}\.|wandb_v1_|tgp_v1_|ops_eyJ|fw_|AGE-SECRET-KEY-|AIza|csk-(?=[a-z0-9]{40})|pcsk_|lsv2_|tvly-|xkeysib-
  |CCIPAT_|(?:e2b|sbp|sq[pua]|rubygems)_(?=[0-9a-f]{40})|dt0[a-z]\d\d\.|LTAI(?=[A-Za-z0-9]{16})|ATCTT|ATBB(?=\w{28})|SWMTKN-1-|fm2_(?=[\w-]{40}))
# Of any value, the first five shapes make a secret: keys by their begins or form, signed tokens, hashes, hooks, users in URLs. Then: by context.
* :: (?<![A-Za-z0-9])(?:(?:hf_(?!(?:overrides|processors?|quantizer|transfer|datasets?|tokenizer|inference|endpoint|internal|transformers|accelerate|generation)
  (?![A-Za-z0-9]))|sk-|gh[pousr]_|glpat-|nvapi-)[a-z]{10,200}|<BEGIN>(?=[\w.-]{0,60}[A-Z0-9])(?=[\w-]{0,16}[A-Za-z0-9]{5})[A-Za-z0-9][\w.-]{6,400}[\w-]|(?:AKIA
  |ASIA|AROA)[A-Z0-9]{8,32}(?![a-z])|(?<![\w-])eyJ(?:[\w-]{6,4000}\.[\w-]{2,8000}(?:\.[\w-]{0,4000}){0,3}|[\w+/=-]{40,8000})|\d{8,11}:(?:AA[\w-]{30,60}|
  (?=[a-z0-9_-]{0,34}[A-Z])(?=[A-Z0-9_-]{0,34}[a-z])[\w-]{35}(?![\w-]))|LS0tLS1CRUdJTi[A-Za-z0-9+/=]{1,20000}|(?<![\w/.-])(?!sha\d)[a-z][a-z0-9]{1,9}[_-]
  (?:[a-z0-9]{1,8}[_-]){0,2}(?=[A-Z0-9]{0,40}[a-z])(?=[a-z0-9]{0,40}[A-Z])(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{32,200}(?![\w/+=-])|[MNO][\w-]{22,28}\.[\w-]{6}
  \.[\w-]{27,40}|[\w-]{10,20}\.atlasv1\.[\w-]{20,80}) ;; $ :: \$(?:[1567y]|2[abxy]|apr1|argon2\w{0,2})\$[\w./$=,+-]{8,300}
sha} or pbkdf2. or telegram.org or /key/ :: \{S?SHA\d{0,3}\}([\w+/=]{16,200})|\bpbkdf2\.(sha\d{1,3}[\w.]{20,2000})|telegram\.org/bot([\w:-]{16,100})|/with/key/
  ([\w-]{8,100}) ;; hook :: ://([\w.-]{0,100}hook[\w.-]{0,100}/[^\s"'<>`]{16,400})|hook(s?/(?=[\w/@-]{0,60}\d)(?=[\w/@-]{0,60}[A-Za-z0-9]{16})[\w/@-]{16,200})
:// or :\/\/ :: :\\?/\\?/(?:([^\s/"'<>`\\]{1,400})@|([^\s/:@"'<>`]{0,100}:(?!\d{1,5}/|//)[^\s"'<>@`]{1,200}(?:@[^\s/"'<>@`]{1,100}){0,3})@)
@ :: (?<![:\w/])//([^\s/:@"'<>]{1,100}:[^\s/@"'<>]{1,200})@|(?<![\w.:/@-])([\w.+-]{1,64}:(?=[^\s:@"'/]{0,60}\d)(?=[^\s:@"'/]{0,60}[A-Za-z])[^\s:@"'/<>]{6,200})@
  (?!sha\d)[\w(.-] ;; private key or putty- :: PuTTY-User-Key-File-\d([\s\S]{0,20000}?Private-MAC: ?[0-9a-f]{8,128})|-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY
  (?: BLOCK)? ?-{4,5}(?:((?:(?!-{4,5} ?BEGIN)[\s\S]){0,20000}?)(?=-{4,5} ?END)|((?:(?:[^\n-]|-(?!---)){0,8000}[A-Za-z0-9+/]{16}(?:[^\n-]|-(?!---)){0,8000})?
  (?:\n[^\n]{0,120}(?:[A-Za-z0-9+/]{16}|[A-Za-z0-9+/]{2}={1,2})[^\w\n]{0,8}(?![^\n])|\n(?=\n)){0,400})) ;; END = -{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY
--end or -- end :: (?<![A-Za-z0-9+/])(?:[A-Za-z0-9+/]{16,4000}={0,2}(?![\w=+/])(?=(?:[^-]|-(?!--)){0,5000}<END>)|[A-Za-z0-9+/]{2,16}={1,2}(?=(?:[^-]|-(?!--)
  ){0,120}<END>)) ;; bearer :: (?i)\bbearer[\s,]{1,4}["']?(?!(?:tokens?|auth\w*|scheme|header|is|and|or|in|of|realm)\b|\$\{?[A-Z_]+\b)([^\s"'`,;)}\]]{3,2000})
login :: \b(?:vault|cargo|wandb)\W{1,4}login\W{1,4}(?:--?\S{1,60} )?((?=[\w.-]{0,40}\d)[\w.][\w.-]{7,200})
echo or printf :: \b(?:echo|printf)\s{1,4}(?:-n\s|'?%s(?:\\n)?'?\s)?([^\n|]{1,200}?)\s{0,4}\|[^|\n]{0,120}?<READS>
<< :: <READS>[^\n|;<]{0,200}<<(?:<\s{0,2}<WORD>|-?\s?["']?\w{1,20}["']?\n([^\n]{1,200}(?:\n[\w.-]{1,32}:\S{1,200}){0,9}))
pass or mq or mc alias or http-basic or nmcli or masterauth or pw :: (?m)(?:\b(?:(?:wpa_passphrase|rabbitmqctl (?:add_user|change_password)|user set password
  |openssl passwd|mc alias set \S{1,60} \S{1,100}|config http-basic\.\S{1,60}) \S{1,100}|nmcli [^\n|;]{0,200}?[ .](?:psk|password|wep-key\d?)|login\s{1,8}
  \S{1,100}\s{1,8}(?:account\s{1,8}\S{1,100}\s{1,8})?password)|^\s{0,40}(?:requirepass|masterauth|bindpw|rootpw))\s{1,8}(?!<SENTENCE>)<WORD>
login( or securestring or encrypt_string or identified by or with password :: (?:\blogin\(|\bConvertTo-SecureString |\bencrypt_string |
  (?i:\bidentified by |\bwith password ))["']([^"'\n]{4,200})["'] ;; pass or pwd or pw :: (?i)\b(?:user(?:_?name)?|login|email)["']?\s{0,3}[:=]\s{0,3}
  ["']?[^\s"',;]{1,80}["']?[\s,;&]{1,20}["']?(?:pass|pwd|pw)["']?\s{0,3}[:=]\s{0,3}(?:"([^"\n]{1,200})|'([^'\n]{1,200})|([^\s"',;&}]{1,200}))
auth :: (?:BasicAuth\([^)\n]{0,100}|[^a-z]auth\W{1,4}\([^)\n]{1,100}),\s?["']([^"'\n]{1,200})["'] ;; "k" or "d" :: "[kd]"\s?:\s?"([\w-]{10,2000})"
is not a valid :: (?<![^\s'"`])((?=\S{0,200}\d)[^\s'"`]{4,200})['"`]? is not a valid (?i:api[ _-]key|(?:\w{1,10} )?token|password)
: :: (?m)^(?:[^\s:]{1,100}):(?:\d{1,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(\S{1,200})$ ;; -p :: \b(?:(?:mysql\w{0,10}|mariadb\w{0,10}|sshpass|mongo\w{0,8}|7z\w?|user
  (?:add|mod)|cqlsh|racadm|twine|\w{2,10} (?:\w{2,10} )?login)<GIVES>-p|(?:ipmitool|(?:un)?zip|mosquitto_\w{3}|sqlcmd|bcp)<GIVES>-P)<GIVEN>
redis-cli or ldap or openssl or htpasswd :: \b(?:redis-cli<GIVES>-a|ldap\w{2,8}<GIVES>-w|openssl<GIVES>-pass(?:in|out)?|htpasswd<GIVES>(?:-(?=\w{0,4}n)\w{0,3}
  b\w{0,2} \S{1,80}(?= )|-\w{0,3}b\w{0,2} \S{1,80} \S{1,80}(?= )))<GIVEN> ;; - :: \b(?:curl|wget|https?|xh|smbclient|rpcclient|etcdctl|ctr|ntfy|skopeo|podman)
  <GIVES>(?:-[a-zA-Z]{0,8}?[uUa]|--(?:(?:proxy-)?user|cert|(?:src-|dest-)?creds|auth))[ =,"'\t]{0,4}[^\s:%"',]{1,100}[:%]<GIVEN>
# What is between a name and its value (`=`, `:`, a hint of a type, the key `value`; or prose or a table), and the value. Then: names and values.
? or & :: (?P<name>[?&][\w.-]{1,64})=([^&\s"'<>`]{1,4000}) ;; * :: (?m)^( {0,40})(?:- )?["']?(?P<name>[\w.-]{1,64})["']?[ \t]{0,8}:[ \t]{0,8}(?:
  (?:[|>][+-]?\d?[+-]?|&\w{1,40}|!\S{1,40})[ \t]{0,8}){0,3}(?:#[^\n]{0,200})?\r?\n(?=((?:(?:\1 {1,40}|\1- )[^\n]{1,1000}(?:\n|\Z)| {0,40}\n){1,40}))
* :: (?m)(?:(?P<line>^(?:[\dT:.-]{19,29}Z? )?(?:\([\w =]{1,60}\) )?\s{0,40}(?:- |export |set |declare -x |> |\| )?["']?)|(?<![A-Za-z0-9_.@-]))
  (?P<name>[A-Za-z0-9_.@-]{0,200}?(?=[abchjkmopstABCHJKMOPST])(?i:(?:api|secret|access|auth)[\s.:]keys?|secret|passw|passphrase|passcode|kennwort|token
  |credential|creds|auth|bearer|cookie|jwt|keys?(?![a-z])|pass(?![a-z])|pwd|pw(?![a-z])|pat(?![a-z])|psk|salt|sess(?:ion)?[ _]?(?:id)?(?![a-z])|\bsid|otp|sig
  (?![a-z])|signature|hmac|ticket|mnemonic|SAMLResponse|code(?==))(?:\x20ID(?=\s?[:=]))?(?:[\w-]|\.(?=\w)){0,64}(?:\[\d{1,4}\])?)(?!\w)[\\"'`\]*]{0,8}
  (?:\[[\\"']{1,4}value[\\"']{1,4}\])? ;; </ :: <(?:\w{1,20}:)?(?P<name>[\w.-]{1,64})(?:\s[^<>\n]{0,80})?>\s{0,40}(?:<!\[CDATA\[)?([^<\]]{1,4000})(?=</|\]\]>)
value :: ["']value["']\s?:\s?["'](?=[^"'\n]{1,2000}["'],\s{1,20}["'](?:name|key)["']\s?:\s?["'](?P<name>[\w.-]{1,64}))([^"'\n]{1,2000})
env or set or config or header :: \b(?:ENV|setx|setenv|set -gx|configure set|config set|config|header|set_header)[ \t]{1,4}(?P<name>[\w.:/-]{1,64})[ \t]{1,4}
  ["']?([^\s"';]{1,2000}) ;; - :: (?<![\w-])(?P<name>--?[A-Za-z][\w.-]{0,80})(?:\\{0,7}["'],\s{0,80}\\{0,7}["'](?!-)([^"'\\\n]{1,2000}(?:\\{0,7}["'],\s{0,80}
  \\{0,7}["'](?!-)[^"'\\\n]{1,2000}){0,7})|["']?(?:,|\s{0,8}\\\n\s{0,40}|\s{0,8}\n\s{0,40}- {1,8}["']?|\s{0,8}\n(?=\S{0,60}\d)|[ \t]{1,8}(?!\\\n))(?!--|["']?-
  |<SENTENCE>|[A-Z]+_[A-Z]+\b|"?\$\{?[A-Z])<ARGUMENT>) ;; VALUE = (?:(?P<sign>\s{0,8}:\s{0,3}[A-Za-z_]\w{0,20}(?:\[\w{1,20}\])?\s{1,3}=(?=\s)|(?:[^\S\n]|\n
  (?!\s{0,8}={2,80}[ \n])){0,40}(?:={1,2}>|:=|={1,2}|:{1,2}|-{1,2}>)|[\s,"'{/>]{1,60}(?:\w{1,12}=["']?\w{1,20}["']?\s{1,3})?[\\"']{0,4}(?i:val(?:ue)?|default)
  [\\"']{0,4}\s{0,3}[:=]|"\r?\n\r?\n|\n\x20 [^\n]{1,300}?\binput_value=)|(?P<prose>(?:[ \t]{0,2}[,|│][ \t]{0,40}|[ \t]{0,3}\.{3,60}|[ \t]{1,60}(?:(?:[-—–→|│]
  |-{1,2}>)[ \t]{1,8})?|[ \t]?(?=[(<]))(?:/M )?(?:(?i:is|has|was|now|set|to|from|changed|(?P<given>given|provided|supplied|received|entered|used)(?=:?[ \t]{0,4}
  [:(<\[])|given|provided|supplied|received|entered|used|value|with|you|equals|as|argument|for (?:key |user )?[^\s:]{1,60}|of [^\s:]{1,60})(?::?[ \t]{1,4}|(?=:)
  )){0,6}:?[ \t]{0,4}[(<\[]?))(?P<lead>\s{0,8}(?:(?:[|>][+-]?\d?[+-]?|&\w{1,40}|!\S{1,40})\s{1,20}){0,3})(?P<scheme>(?i:bearer|basic|token|digest|api-?key
  |negotiate|ntlm|hmac|oauth|shared\w{3,20}|aws4[\w-]{0,20})(?:\\?\s{1,4}|\+))?(?:string\(\d{1,5}\) (?="))?(?P<call>(?:[A-Za-z_][\w.:]{0,40}\((?:\w{1,20}=)?
  (?=[\[{\\"'`]))?)(?:\$?[brfu]{0,2}(?:(?P<three>"{3}|'{3})((?:(?!(?P=three))[\s\S]){0,4000})|(?P<mark>\\{0,7}["'`])(?P<quoted>(?:(?!(?P=mark))(?:\\[^\n]
  |[^\n\t])|(?P=mark)\x20{1,3}(?:-> )?(?P=mark)){0,4000}))|[\[({](?P<inner>(?:\\{0,7}"(?:\\\\|\\[^"]|[^"\\\n]){0,1000}\\{0,7}"|'(?:\\.|[^'\\\n]){0,1000}'
  |[^\[\](){}"']|[\[({][^\[\](){}]{0,500}[\])}]){0,500})|(?P<bare>(?:[^\s"'`,;&)}\]]|(?:[,;&)}\]]{1,8}|["'`])(?=[^\s"'`,;&)}\]])){1,4000}))
</key> :: <key>(?P<name>[\w.-]{1,64})</key>\s{0,40}<\w{1,20}>([^<]{1,4000})</
, :: ["'](?P<name>[\w.-]{1,64})["'],[ \t]{0,3}[bru]?["'](?![A-Z]+_[A-Z_]+["'])([^"'\n]{4,200})["'][)\]]
"""
_PARTS, _SHAPES = dict[str, re.Pattern[str]](), list[tuple[list[bytes], re.Pattern[str]]]()
for _head, _kind, _text in (re.split("( = | ::)", row, maxsplit=1) for row in re.split("\n| ;; ", re.sub("(?m)^#.*\n|\n  ", "", _TABLE.strip()))):
    _PARTS[_head] = re.compile(re.sub("<([A-Z]+)>", lambda part: _PARTS[part[1]].pattern, _text.removeprefix(" ")))
    _SHAPES += [(_head.replace("*", "").encode().split(b" or "), _PARTS[_head])] if _kind == " ::" else []
_LETTERS = dict(zip(["quot", "apos", "amp", "lt", "gt", *"\u201c\u201d\u2018\u2019：＝\u00a0\0"], "\"'&<>\"\"'':= \t"))
_masks = partial(re.compile(r"[^\s](?:[^\n\t]*[^\s])?").sub, MASK)  # one mask for each line of a secret, and for each word of a list


@lru_cache(maxsize=4096)
def _kinds(name: str) -> set[str]:  # the parts of the table that a name has; apiKey2 is _api_key_ there, and --pass _of_pass_
    words = re.sub(r"(?:\d{0,20}[^a-z0-9])+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", f"{'_of' * name.startswith('-')}_{name}_").lower())
    words = re.sub(r"(?:(_key|_session)_id|(_key)_data)_\Z", r"\1\2_", words)
    return {kind for kind in ("STRONG", "PASSES", "WEAK", "COUNTS", "KEY", "TOKEN", "TOKENS", "OPEN", "ABOUT") if _PARTS[kind].search(words)}


def is_secret(name: str, value: object = None) -> bool:
    """Whether the variable, argument or key of this name holds a secret; with a `value`, also whether that has the form of one."""
    text, kinds = "x" if value is None else str(value), _kinds(name)
    formed = len(text) > 3 and any(pattern.search(text) for _texts, pattern in _SHAPES[:5])
    sure = "ABOUT" not in kinds and (kinds & {"STRONG", "PASSES"} or ("KEY" in kinds and "OPEN" not in kinds))
    token = not kinds & {"ABOUT", "COUNTS", "KEY"} and "TOKENS" in kinds and ("TOKEN" in kinds or not _PARTS["PLAIN"].fullmatch(text.strip()))
    return bool(formed or sure or token or ("TOKEN" in kinds and is_generated(text)))


def is_secret_in_text(name: str, value: str) -> bool:
    """Whether a name in a log and the value after it are a secret. After a name of other things too, such as `key`, the value has to look like one."""
    kinds = _kinds(name)
    if name[:1] in ("?", "&"):  # a parameter of a URL
        return "STRONG" in kinds or ("COUNTS" not in kinds and bool(kinds & {"WEAK", "KEY", "TOKEN"}))
    sure = name.startswith("-") or "WEAK" not in kinds or "STRONG" in kinds or (name.isupper() and ("_" in name or "PASSES" in kinds))
    return (sure and is_secret(name, value)) or ("WEAK" in kinds and "OPEN" not in kinds and is_generated(value))


def is_generated(value: str, least: int = 2) -> bool:
    """Whether a value contains a word that no person wrote: letters and digits that change at least so often."""
    return any(len(_PARTS["CHANGE"].findall(word[:200])) >= least for word in _PARTS["GENERATED"].findall(value[:400]))


def _spans(text: str) -> Iterator[tuple[int, int]]:  # the places of secrets, in any order; they can overlap, and be empty
    done = 0
    for pattern in [pattern for lower in [text.encode("utf-8", "replace").lower()] for texts, pattern in _SHAPES if any(each in lower for each in texts)]:
        for found in pattern.finditer(text):
            name, (at, to) = found.groupdict().get("name"), found.span(found.lastindex or 0)
            if "line" not in pattern.groupindex:
                if not name or is_secret_in_text(name, "a1b2c3" if is_generated(text[at:to]) else "x"):
                    yield at, to
            elif at >= done and (is_secret_in_text(found["name"], "x") or is_generated(text[found.end() : found.end() + 120])):
                rest = _PARTS["VALUE"].match(text, found.end())
                value = _value(rest, found["name"], found["line"] is not None) if rest else ""
                done = rest.start(rest.lastindex or 0) + len(value) if rest and value else done
                yield done - len(value), done


def _value(found: re.Match[str], name: str, begins: bool) -> str:  # the value of a name, empty if it is not a secret
    low, sign, bare, over, value = name.lower(), found["sign"], found["bare"], "\n" in found["lead"], found[found.lastindex or 0]
    sure, plain = is_secret_in_text(name, "x"), _PARTS["PLAIN"].fullmatch(value.strip())
    if bare and begins and sign and not over and not plain and not (found["scheme"] or "").lower().startswith(("bearer", "token", "basic")):
        value = re.split("[\n\t]", found.string[found.start("bare") : found.start("bare") + 4000])[0]
    value = value if sign and not bare else value.rstrip(" \t\r.;," if sign else " .;,>:|│)")
    generated, variable = is_generated(value, 1), _PARTS["VARIABLE"].fullmatch(value)
    same = re.fullmatch(r"[\w.\]})]+", value) and value.rstrip(")]}").lower().rpartition(".")[2] == low.rpartition(".")[2]
    code = variable or same or _PARTS["SENTENCE"].match(value) or (sign == " =" and _PARTS["CODE"].fullmatch(value) and not is_generated(value))
    none: object = plain and (not value.strip("[ \n")[:1].isdigit() or ("token" in low and (low.endswith("s") or not re.fullmatch(r"\d{6,}", value.strip()))))
    none = none or (re.search(r"[^s]s\Z", low) and re.fullmatch(r"\d{1,3}(?: [a-z]{1,20})?", value))  # a number of them
    other = found["call"][-4:] in ("get(", "env(", "pop(") or (found["inner"] and low[-4:] == "auth") or (bare and (over or (sign == ":" and low[:2] == "--")))
    looks = generated or (sure and (found["given"] or (found["quoted"] and "token" not in low and not re.search("[,|│]", found["prose"] or ""))))
    digest = low in ("key", "keys") and " is " not in (found["prose"] or "") and re.fullmatch(r"[0-9a-f]+", value)
    prose = not sign and bool(over or variable or value.startswith("--") or not looks or digest)
    return "" if none or (bare and code) or (other and not generated) or prose or not is_secret_in_text(name, value) else value


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text for a terminal or a file, with secrets masked. Each line keeps its place: a text has as many lines as before."""
    return redact_each([text], known)[0]


def redact_each(texts: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Return texts that do not belong together, each masked by itself. A value that one of them names is masked in all."""
    forms, wrap, out, values = known_forms(tuple(known)), _PARTS["WRAP"].pattern, list[str](), set[str]()
    for raw in texts:
        text = _replaced(_PARTS["HIDDEN"].sub("", raw), forms)
        joined = re.sub(rf"(?<=[^\n]{{60}}){wrap}", "", text) if forms else ""
        for form in (re.compile(f"(?:{wrap})?".join(map(re.escape, form))) for form in forms if form in joined):
            text = form.sub(lambda found: _masks(found[0]), text)
        plain = _PARTS["ENCODED"].sub(lambda at: _LETTERS.get(at[5] or at[0]) or chr(int(at[4] or at[1] or at[2] or at[3], 10 if at[4] else 16)), text)
        view, parts, done = _replaced(plain, forms), [""], 0
        for at, to in sorted(set(_spans(view))):
            if max(at, done) < to and not view.startswith(MASK, at):
                parts += [view[done:at], _masks(view[max(at, done) : to]).removeprefix(MASK if at <= done and parts[-1] else "")]
                done = to
                values |= {view[at:to]} if len(values) < VALUES and 8 <= to - at <= 200 and " " not in view[at:to] and is_generated(view[at:to]) else set()
        lines = zip(*(re.finditer(r"[^\n]*\n?", each) for each in (text, plain, "".join([*parts, view[done:]]))))
        out.append("".join(line[0] if after[0] == before[0] else after[0] for line, before, after in lines))
    return [printable(_replaced(text, sorted(values, key=len, reverse=True))) for text in out]


def _replaced(text: str, values: Iterable[str]) -> str:
    return reduce(lambda text, value: text.replace(value, _masks(value)), values, text)


@lru_cache(maxsize=16)
def known_forms(known: tuple[str, ...]) -> list[str]:
    """Return known values as they are, and as JSON, repr, URLs, a shell, HTML, hex and base64 write them, the longest first."""
    out: set[str] = set()
    for value in (each for each in known if len(each) >= SHORTEST):
        data, text = value.encode("utf-8", "surrogateescape"), json.dumps(value)[1:-1]
        out |= {value, text, json.dumps(text)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], shlex.quote(value), html.escape(value)}
        out |= {quote(data), quote(data, safe=""), quote_plus(data), data.hex(), data.hex().upper()}
        for encode in (base64.b64encode, base64.urlsafe_b64encode):  # alone, and within a longer text by its place in groups of three bytes
            parts = (encode(b"\0" * before + data).decode()[(before * 4 + 2) // 3 : (before + len(data)) // 3 * 4] for before in range(3))
            out |= {encode(data).decode(), *(part for part in parts if len(part) >= 6)}
    return sorted(out, key=len, reverse=True)


def without(value: Any, known: Collection[str]) -> Any:
    """Return a structure with known values masked in its texts, and nothing else changed."""
    return _each(value, lambda text: _replaced(text, known_forms(tuple(known))), False)


def masked(value: Any, known: Collection[str] = ()) -> Any:
    """Return a structure of mappings, lists and strings with its secrets masked: by key, by `NAME=value`, by the argument before, and by value."""
    return _each(value, lambda text: redact(text, known), True)


def _each(value: Any, clean: Callable[[str], str], keys: bool, name: str = "") -> Any:
    if keys and name and value and (is_secret(name, value) if isinstance(value, str) else isinstance(value, Collection) and is_secret_in_text(name, "x")):
        return MASK
    if isinstance(value, Mapping):
        named = next((str(value[key]) for key in ("name", "Name", "key", "Key") if is_secret(str(value.get(key) or ""))), "value")
        return {key: _each(each, clean, keys, named if str(key).lower() == "value" else str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):  # the words of a list are cleaned together
        apart = not value or any(not isinstance(each, str) or re.search(r"[\t\n]", each) for each in value)
        return [_each(each, clean, keys) for each in value] if apart else clean("\t".join(value)).split("\t")
    return clean(value) if isinstance(value, str) else value


def holds_secret(name: str, value: Any) -> bool:
    """Whether a variable or an argument must not be shown: by its name, or by anything in its value. The predicate of profiles and inventories."""
    found = is_secret(name, value) or is_secret_in_text(name, str(value)) or (MASK not in str(value) and MASK in str(masked(value)))
    return found and value is not None and not isinstance(value, bool)
