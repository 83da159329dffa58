"""Training wordings about amounts, dates and urgency. For the grammar see `grammar.py`."""

from __future__ import annotations

from .grammar import Clauses

AMOUNT: dict[str, Clauses] = {
    "money": (
        "the amount [was|is] {amount}", "it was {amount}", "it was for {amount}",
        "[we're|we are] talking about {amount}", "the [charge|payment] was [for|] {amount}",
        "[that's|that is|that was] {amount}", "it's {amount} [in total|altogether|]",
        "the total [is|was|comes to] {amount}", "it [comes|came|adds up] to {amount}",
        "{amount} [was taken|came out of my account|has gone from my account|left my account]",
        "it says {amount} [here|on my statement|on the screen]", "you [took|charged me] {amount}",
        "I [see|can see] {amount} [on my statement|on the bill|here]", "the sum is {amount}",
        "[about|regarding] the amount, it's {amount}", "{amount} is the amount",
        "I [paid|was charged|lost] {amount}", "{amount}, to be exact",
        "[we're|we are|it is|it's] [speaking of|looking at|about|roughly|exactly|precisely] "
        "{amount}",
        "[a total|a sum|an amount|a charge|a payment|a fee] of {amount}",
        "{amount} [in total|altogether|all in|overall|exactly|to be precise]",
        "[around|exactly|precisely|namely|all of|no less than] {amount}",
        "[you|they|your company|the system] [debited|deducted|withdrew|billed|booked|"
        "collected|charged] {amount} [from me|from my account|]",
        "[my|the] [statement|bank|app|screen|letter|receipt|invoice|email] [says|shows|lists|"
        "has|mentions] {amount}",
        "[it|that] [cost|set] me [back|] {amount}",
        "{amount} [is|was] [missing|gone|taken|deducted|withdrawn|debited|the figure|the sum|"
        "what it says|what I see|at stake]",
        "I'm [out|short|down] [of|by|] {amount}",
        "[the figure|the value|the number|the price|the fee|the cost] [is|was|says] {amount}",
        "amount: {amount}", "[a whole|a good|no less than] {amount}",
        "[I mean|I'm talking about|it concerns|it's about|this is about] {amount}",
    ),
    "payment": (
        "I can pay {amount}", "the balance is {amount}", "I [want|would like] to pay {amount}",
        "[I owe|I think I owe] {amount}", "the bill is [for|] {amount}", "it's {amount}",
        "the amount [is|due is] {amount}", "I have {amount} [ready|to pay|to put towards it]",
        "[you can|please] take {amount} from my card", "it [comes|adds up] to {amount}",
        "the total is {amount}", "what I owe is {amount}", "{amount} is what I [owe|can pay]",
        "[I'd|I could|I can|I will|I'll] [send|transfer|give|put in|manage|do|afford|spare] "
        "{amount} [now|for now|today|]",
        "[the|my] [debt|outstanding sum|open amount|arrears] [is|stands at|comes to|"
        "shows|amounts to] {amount}",
        "[charge|debit|collect|deduct|book] {amount} [from my card|please|]", "amount: {amount}",
        "[the letter|the reminder|the app|the bill|the invoice|my account] [says|shows|asks "
        "for|mentions|wants] {amount}",
        "{amount} is [due|open|outstanding|overdue|left|still to pay|the balance]",
        "there's {amount} [open|left|outstanding|due]",
        "[that's|that would be|it would be|it makes] {amount} [in all|in total|all together|]",
    ),
    "price": (
        "I saw it [advertised|online|] for {amount}", "my budget is {amount}",
        "the offer [said|was] {amount} [a month|]", "I can spend {amount} [a month|]",
        "the price was {amount}", "I'm paying {amount} [now|a month|at the moment]",
        "I paid {amount} for it", "it costs me {amount} [a month|]", "it cost {amount}",
        "I'd pay up to {amount}", "the [price|monthly price] is {amount}",
        "{amount} a month is [the price|what I pay|what it costs]",
        "[my|the] [limit|maximum|ceiling] is {amount}",
        "[now|today|currently|so far] [it's|I pay|I'm on] {amount}",
        "[you|they|it was] [advertise|offer|quoted|listed] [it|] at {amount}",
        "[the|your] [website|shop|leaflet|ad|email] [says|said|lists|promised] {amount}",
        "[no|not] more than {amount} [a month|please|]",
        "I [bought|got|took|rent] it for {amount}",
        "[it's|that's] {amount} [every month|per month|each month|monthly]",
        "[every month|each month] I [pay|spend] {amount}",
        "[around|about|roughly|up to] {amount} [is okay|would be fine|is my idea|is good|]",
        "it [goes|sells] for {amount}", "amount: {amount}",
    ),
}  # fmt: skip

DATE: dict[str, Clauses] = {
    "past": (
        "it happened {on_past}", "this [was|happened] {on_past}", "that was {on_past}",
        "it started {on_past}", "it's been [like this|this way|going on] since {past}",
        "[it was|that happened] {on_past}", "I [noticed|saw|found] [it|this] {on_past}",
        "the date was {past}", "this [has been going on since|goes back to] {past}",
        "I've been waiting since {past}", "it all [began|started] {on_past}",
        "the day it happened was {past}", "[it goes|this goes] back to {past}",
        "{past} is when it [happened|started|began]", "ever since {past} it's been the same",
        "[it|this|the trouble|the problem|the whole thing] [occurred|came up|appeared|took "
        "place|hit us|showed up] {on_past}",
        "date: {past}", "[first|last] [seen|noticed|happened] {on_past}",
        "since {past} [to be exact|if I remember right|in fact|]",
        "[it's been|that's been] so since {past}",
        "[I remember|I recall|I think|I believe] it was {on_past}",
        "the [letter|email|message|bill] [is from|is dated|came] {past}",
        "{on_past} [it was|was when it was|is when I saw it]",
        "[my notes|my diary|my calendar] [say|says] {past}", "[the day|the date] was {past}",
        "[that|this] [dates|goes|reaches] back to {past}", "[counting|starting|going] from {past}",
        "[everything|all] was [fine|well|good] [until|before] {past}",
        "[from|since] {past} [on|onwards|until now|it's been bad]",
        "[I wrote|I noted|I called about] it {on_past}", "[it all goes|that goes] back to {past}",
        "[exactly|precisely] {on_past}",
    ),
    "future": (
        "I'd like [that|it|this] [done|sorted|] {on_future}", "it should be {on_future}",
        "[it has|it needs] to be {on_future}", "please do it {on_future}",
        "the date [is|will be|would be] {future}", "it would be {on_future}",
        "[I was thinking|we're planning] {on_future}", "the plan is to do it {on_future}",
        "I want it [to start|to happen|] {on_future}", "please make it {on_future}",
        "can we do it {on_future}", "{future} [would suit me|is best|works for me]",
        "let's say {on_future}", "it's [planned|set|fixed] for {future}",
        "[I'd like|I want] it from {future}", "we have {future} in mind",
        "[from|starting|beginning|effective] {future} [please|on|onwards|]", "date: {future}",
        "[the|my|our] [deadline|appointment|target|preferred day|ideal day|day] is {future}",
        "[schedule|book|plan|arrange|set|put] it [for|in for] {future}",
        "[could|can|might] [it|this] [be|happen|start] {on_future}",
        "[would|does] {future} [work|suit you|be okay|be possible]",
        "[ideally|preferably|if possible|latest|at the latest] {on_future}",
        "{on_future} [would be|is] [ideal|perfect|best|good|fine|great]",
        "I [aim|plan|hope|mean|intend] to [do it|have it|start] {on_future}",
        "[it's|this is] meant for {future}",
        "[we|I] [said|agreed|picked|chose|settled on] {future}", "[make|let's make] it {future}",
        "[not before|no earlier than|by|not later than] {future}",
        "[what about|how about] {future}", "[I'm free|I'm home|I'm available] {on_future}",
        "[for|around] {future}", "I have {future} [circled|marked|noted] in my calendar",
    ),
}  # fmt: skip

URGENCY: dict[str, Clauses] = {
    "high": (
        "it's [urgent|very urgent|really urgent|quite urgent]", "this is [very|really|] urgent",
        "[please|can you] [hurry|be quick|hurry up]",
        "I need [this|it] [fixed|done|sorted|] [urgently|immediately|right away|straight "
        "away|as soon as possible|right now]",
        "this [can't|cannot] wait", "it [can't|cannot] wait [any longer|]",
        "[please|could you] [do this|deal with this|sort this out|help me] [as soon as "
        "possible|immediately|right away|straight away|now|urgently]",
        "it's an emergency", "[this is|I'd call it] an emergency",
        "I [can't|cannot] wait [any longer|another day|]", "time is [short|running out]",
        "I need [help|an answer|someone] [right now|immediately|urgently|at once]",
        "it has to be [done|fixed|sorted] [now|immediately|at once]",
        "as [quickly|fast|soon] as [possible|you can|you possibly can], please",
        "[this is|it's] a top priority [for me|]", "please treat this as [urgent|an emergency]",
        "every [hour|minute] [counts|matters]", "there's no time to [lose|waste]",
        "the sooner the better, [it's urgent|I can't wait]", "I'm in a [real|great|big] hurry",
        "please [rush|speed] this", "I'm desperate, [please hurry|I need this now]",
        "it [must|needs to] be [right away|quick|fast]",
        "[it's|this is|that is|it really is] [extremely|terribly|super|so|truly|incredibly|"
        "highly] urgent",
        "[it's|this is] [critical|pressing|time critical|very pressing|a matter of urgency|"
        "of the utmost urgency|dire]",
        "[please|] [act|answer|respond|react|move|come] [fast|quickly|immediately|at once|"
        "promptly|without delay]",
        "[I|we] [need|must have|require] [a|an] [fast|quick|rapid|immediate|instant|prompt|"
        "urgent|same day] [answer|solution|reply|fix|response|reaction|decision]",
        "[I|we] [need|want|must have] [it|this|that] [today|tonight|this minute|this instant|"
        "within the hour|by tonight|before tonight|now]",
        "[it|this] [must|has to|should|needs to|ought to] [happen|be done|be fixed|be solved|"
        "be sorted|get done] [today|tonight|within the hour|this minute|instantly|at once|"
        "without delay|very soon|now]",
        "[don't|do not|please don't] [wait|delay|put it off|leave it|let it sit|hang about|"
        "waste time]",
        "[no|without] [delay|delays|waiting], please",
        "[hurry|be fast|make it fast|make it quick|quickly|fast|at once|right now|straight "
        "away|immediately|urgently|pronto], please",
        "[this|it] [won't|will not|simply can't|really cannot|mustn't|must not] [wait|be "
        "delayed|be put off]",
        "[top|highest|maximum|high] priority [please|]",
        "[put|move|bump] [this|me|it] [to|at] the [top|front] [of the queue|of the list|of "
        "the pile|]",
        "[I'm|we're|I am] [running out of time|out of time|short of time|under pressure|"
        "against the clock|up against it|pressed for time|in trouble without it|really stuck|"
        "panicking]",
        "the [clock|deadline] is [ticking|close|near|tonight|today]",
        "[my|our] [work|job|business|livelihood|health|safety] depends on it",
        "[I|we] [can't|cannot|can not] [work|manage|live|go on|function|continue|cope] "
        "without it",
        "[someone's|a person's|my father's|my mother's] [health|safety|life] [depends on it|"
        "is at risk]",
        "[lives|jobs] depend on [it|this]",
        "[drop|leave] everything [else|] [please|and help me|]",
        "[as a matter of urgency|with the greatest urgency|urgent matter|urgent request|"
        "urgent|very urgent|emergency|an emergency]",
        "[every|each] [second|moment|day] [counts|costs me money|is one too many]",
        "[I|we] [lose|are losing] [money|customers|work] [every|each] [hour|minute|day]",
        "[I|we] [have|need] to [know|have it|get it|solve it] [now|today|at once|immediately|"
        "right now|within the hour]",
        "[fix|solve|sort|do|handle|finish] [it|this] [today|now|immediately|at once|right "
        "now|fast|quickly|without delay|this instant], please",
        "ASAP", "[please|kindly] [do it|help|fix it|reply|deal with it] ASAP",
        "[it's|this is] [really|very|extremely|quite|so] [important|critical] [and|so] "
        "[can't wait|must be fast|must be quick|needs doing now]",
        "[can|could|would] you [speed|hurry] [it|this|things] [up|along]",
        "[can|could] you [be|do it|come|answer] [quick|quickly|fast|faster|sooner|today]",
        "[I|we] [cannot|can't] [stay|be left] [like this|in this state] [another|one more] "
        "[hour|day|minute]",
        "[send|get] [someone|help|somebody|an expert] [now|today|at once|immediately|right away]",
        "[I'm|we are] [waiting|standing] [here|] [and|with] [time is|time] [short|running "
        "out|pressing]",
        "[it's|this is] now or never",
        "[it's|the matter is|this is] [burning|on fire|boiling|life or death|make or break]",
        "there is [no|not a] [moment|minute|second] to [lose|spare|waste]",
        "[I|we] need you to [rush|be fast|be quick|act now|act fast]",
        "[the|a] [quick|quickest|fast|fastest|swift|rapid|speedy] [solution|answer|way|fix|"
        "response|resolution] [is needed|please|is a must]",
        "[treat|mark|flag|handle|class|log] [this|it|my case] as [critical|very urgent|"
        "urgent|high priority|a priority|top priority|an emergency]",
        "[escalate|prioritise|expedite|rush] [this|it|my case] [please|]",
    ),
    "low": (
        "there's no [rush|hurry]", "[it's|this is] not [urgent|at all urgent|that urgent]",
        "no [rush|hurry] [at all|]", "[whenever|when] you [have time|can|get a chance] [is fine|]",
        "take your time", "it [isn't|is not] urgent", "it can wait", "[this|that] can wait",
        "I'm [not in a hurry|in no hurry|not in any rush|in no rush]",
        "any time is fine [by me|with me|]", "please take your time [with it|]",
        "it's [nothing urgent|low priority|not important]", "there is no hurry [with this|]",
        "[it's|this is] not an emergency", "[it's|this is] not a priority", "I don't mind waiting",
        "I can wait [for a few weeks|a while|]", "[you don't|no] need to [rush|hurry]",
        "don't rush [on my account|]", "there's plenty of time", "[I have|we have] plenty of time",
        "it doesn't need to be [now|quick|fast]", "do it when it [suits|suits you]",
        "it's not [pressing|time critical]", "I have all the time in the world",
        "nothing [urgent|pressing]", "later is fine [with me|too|]",
        "[it's|this is|that is] [hardly|barely|not really|by no means|certainly not|not "
        "remotely|not exactly|far from] urgent",
        "[there's|there is] [absolutely|really|] no [urgency|pressure|deadline|time pressure|"
        "panic|great rush]",
        "[no|zero] [urgency|pressure|panic|stress|deadline] [at all|here|on my side|from my "
        "side|whatsoever|]",
        "[I'm|we're|I am] [in no way|not] [pressed|rushed|under pressure|pressed for time|"
        "short of time]",
        "[it|this|that] [can|could|may] [easily|happily|well|certainly|perfectly well|] "
        "[wait|wait a bit|wait a while|wait until next week|wait until next month|be done "
        "later|sit for a while]",
        "[do|deal with|look at|handle|sort|fix] [it|this] [whenever|when] [you like|you can|"
        "you want|it's quiet|it suits you|things are quiet|you get round to it|you find time|"
        "you have a spare moment|convenient]",
        "[at|in] your [leisure|own time|own pace|convenience|own good time]",
        "[when|whenever] [it suits|it fits|it's convenient|there's time|you have a free "
        "moment|you get to it|you are less busy]",
        "[take|use] [all the|as much|as long as] [time|time as you need|you need|you like|"
        "you want]",
        "[next|some other] [week|month|year] [is|would be|will be] [fine|okay|early enough|"
        "soon enough|good enough]",
        "[a few|some|a couple of] [days|weeks|months] [won't|don't|do not] [matter|hurt|make "
        "a difference]",
        "[it|this] [makes|would make] no difference [when|if it's later|how long it takes]",
        "[I'm|we're] [happy|content|glad|prepared|willing|fine] to wait",
        "[I|we] [have|got|still have] [lots of|enough|loads of|all the] time",
        "[I|we] [can|could|will] [easily|happily|gladly|] wait",
        "[don't|do not|you needn't] [worry about time|stress|hurry|push it|rush|"
        "panic|drop anything for it|hurry on my behalf]",
        "[it's|this is] [minor|a small thing|a minor thing|a trifle|a detail|not a big thing|"
        "nothing big|nothing serious|not serious|nothing dramatic] [and can wait|so no hurry|"
        "no rush|]",
        "[low|lowest] priority [please|for me|from my side|]",
        "[put|leave] [it|this|me] [at|on] the [bottom|back|end] of [the pile|the list|the queue]",
        "[some|any] time [this|next] [week|month|year] [is fine|will do|would do|is okay]",
        "[sooner|today] or [later|tomorrow], [it's all the same|I don't mind|both are fine]",
        "[there|it] [doesn't|does not] need [to be|doing] [today|at once|immediately|right "
        "away|straight away|this week]",
        "[it|this] [need not|needn't|doesn't have to|does not have to] [be|happen] [now|"
        "today|soon|immediately|quick|fast|at once]",
        "[I|we] [don't|do not] need [it|this|an answer|a reply] [now|today|soon|immediately|"
        "at once|right away|this week]",
        "[not|nothing] [time critical|that matters right now|for today|to lose sleep over|to "
        "hurry for|pressing]",
        "[in|over] the [next|coming] [weeks|months|few weeks] [is fine|would be fine|will do]",
        "[slow|easy] is [fine|okay]",
        "[relax|easy], [there's no hurry|it can wait|no rush|take your time]",
        "[no one|nobody] is [in a hurry|waiting for it|pushing]",
        "[only|just] when you [have|get|find] [time|a moment|a chance]",
        "[other|more urgent] [things|cases|callers|customers] [come|can go|may go|should go] "
        "first",
        "[I|we] [wouldn't|would not|don't] call it [urgent|an emergency|pressing]",
        "[it|this] [isn't|is not] [pressing|critical|time critical|an emergency|a priority|a "
        "matter of urgency|important right now]",
        "[eventually|at some point|one day|some day] [is fine|is enough|will do]",
        "a [slow|late] [answer|reply] is [fine|okay|no problem]",
        "[whatever|any] [day|week|moment] [works|suits] [you|] [is fine|]",
        "[mark|treat|file|flag|log] [this|it] as [low priority|not urgent|routine|non urgent]",
        "[non urgent|not urgent|routine|low priority|no hurry|no rush]",
        "[just|only] a [routine|casual] [matter|question|request]",
    ),
}  # fmt: skip
